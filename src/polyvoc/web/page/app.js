// Entry point: fetch what the server offers, then show the view that the URL names.

import { getJson } from "./api.js";
import { apiExamplesView } from "./api_examples.js";
import { browseView } from "./browse.js";
import { compareView } from "./compare.js";
import { duplicatesView } from "./duplicates.js";
import { el, heading } from "./elements.js";
import { groupsView } from "./groups.js";
import { matchesView } from "./matches.js";
import { copyText, showError } from "./messages.js";
import { readOptions } from "./options.js";
import { Router } from "./router.js";
import { setupView } from "./setup.js";
import { searchView } from "./search.js";
import { listenForShortcuts } from "./shortcuts.js";
import { startView } from "./start.js";
import { statisticsView } from "./statistics.js";
import { startTheme } from "./theme.js";
import { takeTokenFromUrl } from "./token.js";
import { listenForFiles, searchWith } from "./upload.js";

const ROUTES = {
  start: startView,
  search: searchView,
  matches: matchesView,
  compare: compareView,
  browse: browseView,
  groups: groupsView,
  duplicates: duplicatesView,
  statistics: statisticsView,
  api: apiExamplesView,
};

const main = document.getElementById("main");

function startBar() {
  startTheme(document.getElementById("theme"));
  document
    .getElementById("copy-link")
    .addEventListener("click", () => copyText(location.href, "Link copied."));
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the hash names the view
    main.focus();
  });
}

let router = null; // until the server has described itself
let pendingFiles = null; // dropped before that

function dropTarget() {
  return {
    onFiles: (files) => {
      if (router === null) pendingFiles = files;
      else if (router.view?.onFiles) router.view.onFiles(files);
      else searchWith(router.about, files);
    },
    text: router?.view?.dropText ?? "Drop to search with this photograph",
  };
}

async function serverDescription() {
  const [about, openapi] = await Promise.all([getJson("/about"), getJson("/openapi.json")]);
  return about.setup ? about : { ...about, options: readOptions(about, openapi) };
}

/** The first run: there is no index yet. */
function showSetup() {
  document.getElementById("views").hidden = true;
  const { element, title } = setupView(() => {
    document.getElementById("views").hidden = false;
    open();
  });
  main.replaceChildren(element);
  document.title = `${title} · polyvoc`;
  document.body.dataset.ready = "";
}

async function open() {
  try {
    await takeTokenFromUrl();
    const about = await serverDescription();
    if (about.setup) {
      showSetup();
      return;
    }
    // Groups and copies are of one index.
    for (const link of document.querySelectorAll("#views :is([data-view=groups], [data-view=duplicates])"))
      link.hidden = about.indexes.length > 1;
    router = new Router(ROUTES, main, about);
    router.start();
    if (pendingFiles) searchWith(router.about, pendingFiles);
    document.body.dataset.ready = "";
  } catch (error) {
    main.replaceChildren(el("div", { class: "page" }, heading("polyvoc"), el("p", {}, "The page could not be loaded.")));
    showError(error, open);
  }
}

startBar();
listenForFiles(dropTarget);
listenForShortcuts(() => router?.view);
addEventListener("hashchange", async () => {
  if (!location.hash.startsWith("#token=")) return; // a link with a token, opened in a tab that already shows the page
  await takeTokenFromUrl();
  router?.show();
});
open();
