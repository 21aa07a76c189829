//! The page's files, which are in the program.

/// The page.
pub const INDEX: &str = include_str!("../page/index.html");

/// Its style.
pub const STYLE: &str = include_str!("../page/style.css");

/// Its modules. A module imports only from those before it.
pub const MODULES: [(&str, &str); 13] = [
    ("/format.js", include_str!("../page/format.js")),
    ("/dom.js", include_str!("../page/dom.js")),
    ("/ask.js", include_str!("../page/ask.js")),
    ("/figures.js", include_str!("../page/figures.js")),
    ("/chart.js", include_str!("../page/chart.js")),
    ("/tiles.js", include_str!("../page/tiles.js")),
    ("/memory.js", include_str!("../page/memory.js")),
    ("/curves.js", include_str!("../page/curves.js")),
    ("/latency.js", include_str!("../page/latency.js")),
    ("/objects.js", include_str!("../page/objects.js")),
    ("/sets.js", include_str!("../page/sets.js")),
    ("/events.js", include_str!("../page/events.js")),
    ("/main.js", include_str!("../page/main.js")),
];

/// The file at a path: its media type and its text.
pub fn at(path: &str) -> Option<(&'static str, &'static str)> {
    match path {
        "/" => Some(("text/html; charset=utf-8", INDEX)),
        "/style.css" => Some(("text/css; charset=utf-8", STYLE)),
        _ => {
            let module = MODULES.iter().find(|(name, _)| *name == path);
            module.map(|(_, text)| ("text/javascript; charset=utf-8", *text))
        }
    }
}
