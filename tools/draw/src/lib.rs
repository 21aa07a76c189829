//! Charts and report pages, as SVG inside one HTML file that needs nothing else.
#![forbid(unsafe_code)]
