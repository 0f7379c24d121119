// The API view: the HTTP routes that this page uses, with examples to copy.

import { button, el, heading, linkButton } from "./elements.js";
import { copyText } from "./messages.js";

/** @type {import("./router.js").Route} */
export function apiExamplesView(params, { about }) {
  const origin = location.origin;
  const token = {
    none: "",
    write: "Requests that change the collection need the token that the server printed at start. ",
    all: "Every request needs the token that the server printed at start. ",
  }[about.token];
  const element = el(
    "div",
    { class: "api-examples" },
    heading("HTTP API"),
    el(
      "p",
      { class: "prose" },
      "Everything on this page is available over HTTP. Responses are JSON; ",
      el("code", {}, "POST /search"),
      " returns one of the results that ",
      el("code", {}, "polyvoc search --json"),
      ` prints. ${token}`,
      "Errors are one line; a busy server returns 503 with a Retry-After header.",
    ),
    linkButton("OpenAPI description", "/openapi.json", { target: "_blank", rel: "noopener" }),
    ...examples(origin, about).map(([title, text, code]) => example(title, text, code)),
    reference(),
  );
  return { element, title: "API" };
}

function examples(origin, about) {
  const header = about.token === "all" ? `-H "Authorization: Bearer $TOKEN" ` : "";
  const parts = [
    [
      "Search with a photograph",
      "Hits, most probable first, with probability, number of geometrically consistent matches, and the outline of the query in each.",
      `curl ${header}-F photo=@query.jpg "${origin}/search?top=10"`,
    ],
    [
      "Search with a region, or with other options",
      "Region: x0,y0,x1,y1 in pixels of the full-size photograph. Options have the same names as in the library.",
      `curl ${header}-F photo=@query.jpg "${origin}/search?region=120,80,560,420&preset=best"\n` +
        `curl ${header}-X POST "${origin}/search?query=17&merge=b1&verify=0"`,
    ],
    [
      "Stream results",
      "One line with the ranking by score, then one with the verified ranking.",
      `curl ${header}-N -H "Accept: application/x-ndjson" -F photo=@query.jpg "${origin}/search"`,
    ],
    ["From Python", "Uses the package requests.", python(origin, about)],
    [
      "Explain a hit",
      "Matched features with their words, sets, ratios and weights.",
      `curl ${header}"${origin}/explain?query=17&image=42&limit=100"`,
    ],
  ];
  if (about.write) parts.push(["Add and remove", "Files of removed photographs are not deleted.", writing(origin, about)]);
  return parts;
}

function python(origin, about) {
  const headers = about.token === "all" ? `, headers={"Authorization": f"Bearer {token}"}` : "";
  return [
    "import requests",
    "",
    `with open("query.jpg", "rb") as photo:`,
    `    response = requests.post("${origin}/search", params={"top": 5}, files={"photo": photo}${headers})`,
    "response.raise_for_status()",
    `for hit in response.json()["hits"]:`,
    `    print(hit["probability"], hit["inliers"], hit["path"])`,
  ].join("\n");
}

function writing(origin, about) {
  const header = about.token === "none" ? "" : `-H "Authorization: Bearer $TOKEN" `;
  return `curl ${header}-F photos=@one.jpg -F photos=@two.jpg ${origin}/images\ncurl ${header}-X DELETE ${origin}/images/17`;
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
          onclick: () => copyText(code, "Example copied."),
        },
        "copy",
      ),
    ),
  );
}

function reference() {
  const rows = [
    ["POST /search", "search with a photograph or query=ID; JSON, or lines with Accept: application/x-ndjson"],
    ["POST /search/batch", "search with several photographs"],
    ["POST /queries", "store a photograph for repeated searches, until one hour after its last use"],
    ["GET /queries/ID, /queries/ID/picture", "a stored photograph"],
    ["GET /explain", "matched features of a query and an image"],
    ["GET /images, /folders", "the collection in pages, filtered by name, folder and date; its folders"],
    ["GET /images/ID, /images/ID/thumbnail", "one image"],
    ["GET /images/ID/file", "the original file, if the server allows it"],
    ["POST /images, DELETE /images/ID", "add and remove photographs, if the server allows it"],
    ["GET /groups, /duplicates", "things seen more than once; groups of copies"],
    ["POST /groups, /duplicates", "compare the photographs, if the server allows it; GET /job is how far it is"],
    ["POST /duplicates/verdict, /move, /undo", "verdicts on pairs, and moving copies, on a server for one machine"],
    ["GET /statistics, /about, /health, /metrics, /openapi.json", "the index and the server"],
  ];
  return el(
    "section",
    { class: "part" },
    el("h2", {}, "All routes"),
    el(
      "div",
      { class: "table-box", tabindex: "0", role: "region", "aria-label": "All routes" },
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
