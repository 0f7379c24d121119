// How do programs ask? The same addresses that this page uses, with examples to copy.

import { button, el, heading, linkButton } from "./elements.js";
import { copyText } from "./messages.js";

/** @type {import("./router.js").Route} */
export function programsView(params, { about }) {
  const here = location.origin;
  const token = {
    none: "",
    write: "Whatever changes the collection needs the token that the server printed when it started. ",
    all: "Every request needs the token that the server printed when it started. ",
  }[about.token];
  const element = el(
    "div",
    { class: "programs" },
    heading("For programs"),
    el(
      "p",
      { class: "prose" },
      "Everything on this page can be asked for over HTTP. The answers are JSON; ",
      `POST /search answers what polyvoc search --json prints. ${token}`,
      "An error is one clear line; a busy server says 503 and when to come back.",
    ),
    linkButton("OpenAPI description", "/openapi.json", { target: "_blank", rel: "noopener" }),
    ...examples(here, about).map(([title, text, code]) => example(title, text, code)),
    reference(),
  );
  return { element, title: "API" };
}

function examples(here, about) {
  const header = about.token === "all" ? `-H "Authorization: Bearer $TOKEN" ` : "";
  const parts = [
    [
      "Ask with a photograph",
      "The hits, best first, with their scores, matches that agree, and where the query lies in them.",
      `curl ${header}-F photo=@query.jpg "${here}/search?top=10"`,
    ],
    [
      "Ask with a part of it, by other rules",
      "Region: x0,y0,x1,y1 in pixels of the full-size photograph. All options of the library have its names.",
      `curl ${header}-F photo=@query.jpg "${here}/search?region=120,80,560,420&preset=best"\n` +
        `curl ${header}-X POST "${here}/search?query=17&merge=b1&verify=0"`,
    ],
    [
      "Results while they arrive",
      "One line by scores alone, then one that is verified.",
      `curl ${header}-N -H "Accept: application/x-ndjson" -F photo=@query.jpg "${here}/search"`,
    ],
    ["From Python", "With the library requests.", python(here, about)],
    [
      "Why did it answer?",
      "The matched features with their words, sets, ratios and weights.",
      `curl ${header}"${here}/explain?query=17&image=42&limit=100"`,
    ],
  ];
  if (about.write) parts.push(["Add and remove", "Removed photographs stay on the disk.", writing(here, about)]);
  return parts;
}

function python(here, about) {
  const headers = about.token === "all" ? `, headers={"Authorization": f"Bearer {token}"}` : "";
  return [
    "import requests",
    "",
    `with open("query.jpg", "rb") as photo:`,
    `    answer = requests.post("${here}/search", params={"top": 5}, files={"photo": photo}${headers})`,
    "answer.raise_for_status()",
    `for hit in answer.json()["hits"]:`,
    `    print(f"{hit['score']:.3f}", hit["inliers"], hit["path"])`,
  ].join("\n");
}

function writing(here, about) {
  const header = about.token === "none" ? "" : `-H "Authorization: Bearer $TOKEN" `;
  return `curl ${header}-F photos=@one.jpg -F photos=@two.jpg ${here}/images\ncurl ${header}-X DELETE ${here}/images/17`;
}

function example(title, text, code) {
  return el(
    "section",
    { class: "part example" },
    el("h2", {}, title),
    el("p", {}, text),
    el(
      "div",
      { class: "code-box" },
      el("pre", { tabindex: "0", role: "group", "aria-label": `Example: ${title}` }, el("code", {}, code)),
      button(
        "Copy",
        {
          class: "quiet",
          "aria-label": `Copy the example: ${title}`,
          onclick: () => copyText(code, "The example is in the clipboard."),
        },
        "copy",
      ),
    ),
  );
}

function reference() {
  const rows = [
    ["POST /search", "a photograph or query=ID; an answer, or lines with Accept: application/x-ndjson"],
    ["POST /search/batch", "several photographs at once"],
    ["POST /queries", "keep a photograph for a while to ask with it again"],
    ["GET /queries/ID, /queries/ID/picture", "such a photograph"],
    ["GET /explain", "matched features of a query and an image"],
    ["GET /images", "the collection in pages, found by name"],
    ["GET /images/ID, /images/ID/thumbnail", "one image"],
    ["GET /images/ID/file", "the file itself, from a server that gives files"],
    ["POST /images, DELETE /images/ID", "add and remove photographs, on a server that may write"],
    ["GET /statistics, /about, /health, /metrics, /openapi.json", "the index and the server"],
  ];
  return el(
    "section",
    { class: "part" },
    el("h2", {}, "All addresses"),
    el(
      "div",
      { class: "table-box", tabindex: "0", role: "region", "aria-label": "All addresses" },
      el(
        "table",
        {},
        el(
          "tbody",
          {},
          ...rows.map(([path, text]) => el("tr", {}, el("th", { scope: "row" }, el("code", {}, path)), el("td", {}, text))),
        ),
      ),
    ),
  );
}
