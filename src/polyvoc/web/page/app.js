// What happens when the page opens? The server says what it holds, then the address decides which view is shown.

import { getJson } from "./api.js";
import { browseView } from "./browse.js";
import { compareView } from "./compare.js";
import { el, heading } from "./elements.js";
import { homeView } from "./home.js";
import { askWith, startIntake } from "./intake.js";
import { startKeys } from "./keys.js";
import { matchesView } from "./matches.js";
import { copyText, tellError } from "./messages.js";
import { programsView } from "./programs.js";
import { Router } from "./router.js";
import { searchView } from "./search.js";
import { statisticsView } from "./statistics.js";
import { startTheme } from "./theme.js";
import { takeTokenFromAddress } from "./token.js";

const ROUTES = {
  home: homeView,
  search: searchView,
  matches: matchesView,
  compare: compareView,
  browse: browseView,
  statistics: statisticsView,
  api: programsView,
};

const main = document.getElementById("main");

function startBar() {
  startTheme(document.getElementById("theme"));
  document
    .getElementById("copy-link")
    .addEventListener("click", () => copyText(location.href, "The link to this view is in the clipboard."));
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the hash is the address of the view
    main.focus();
  });
}

let router = null; // once the server has said what it holds
let early = null; // files that were dropped before

function currentIntake() {
  return {
    take: router === null ? (files) => (early = files) : (router.view?.takeFiles ?? ((files) => askWith(router.about, files))),
    text: router?.view?.dropText ?? "Drop it: ask with this photograph",
  };
}

async function open() {
  try {
    await takeTokenFromAddress();
    router = new Router(ROUTES, main, await getJson("/about"));
    router.start();
    if (early) askWith(router.about, early);
    document.body.dataset.ready = "";
  } catch (error) {
    main.replaceChildren(el("div", { class: "page" }, heading("polyvoc"), el("p", {}, "The page could not be opened.")));
    tellError(error, open);
  }
}

startBar();
startIntake(currentIntake);
startKeys(() => router?.view);
addEventListener("hashchange", async () => {
  if (!location.hash.startsWith("#token=")) return; // a link with the token, opened in a tab that shows the page already
  await takeTokenFromAddress();
  router?.show();
});
open();
