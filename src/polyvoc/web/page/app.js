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

async function open() {
  try {
    await takeTokenFromAddress();
    const about = await getJson("/about");
    const router = new Router(ROUTES, main, about);
    startIntake(() => ({
      take: router.view?.takeFiles ?? ((files) => askWith(about, files)),
      text: router.view?.dropText ?? "Drop it: ask with this photograph",
    }));
    startKeys(() => router.view);
    router.start();
    document.body.dataset.ready = "";
  } catch (error) {
    main.replaceChildren(el("div", { class: "page" }, heading("polyvoc"), el("p", {}, "The page could not be opened.")));
    tellError(error, open);
  }
}

startBar();
open();
