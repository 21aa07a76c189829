//! Makes a report: the page with its style, its modules and a recording in one HTML file, which can
//! be mailed and opened without a network.

use serde_json::json;

use crate::assets::{INDEX, MODULES, STYLE};
use crate::recording::Reading;

/// The report's own policy: it may run its own script, and load nothing.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'";

/// The HTML of a report.
pub fn html(reading: &Reading) -> String {
    let data = json!({"reading": reading.to_json(), "broken_lines": reading.broken_lines});
    // In a script element, only `<` can end the element.
    let data = data.to_string().replace('<', "\\u003c");
    let head =
        format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\"><style>{STYLE}</style>");
    let script = format!(
        "<script type=\"application/json\" id=\"recorded\">{data}</script><script type=\"module\">{}</script>",
        one_module()
    );
    INDEX
        .replace("<link rel=\"stylesheet\" href=\"/style.css\">", &head)
        .replace("<script type=\"module\" src=\"/main.js\"></script>", &script)
}

/// All modules as one. Their names differ, so imports and exports can be left out.
fn one_module() -> String {
    let lines = MODULES.iter().flat_map(|(_, text)| text.lines());
    let lines = lines.filter(|line| !line.starts_with("import "));
    lines.map(|line| format!("{}\n", line.strip_prefix("export ").unwrap_or(line))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The report joins the modules, so two of them must not have the same name, and an import must
    /// fit on its line.
    #[test]
    fn the_modules_can_be_joined() {
        let script = one_module();
        let mut names = BTreeSet::new();
        for line in script.lines() {
            assert!(!line.starts_with("} from "), "{line}: an import must be one line");
            assert!(!line.starts_with("default ") && !line.contains("</script"), "{line}");
            let mut words = line.split(|byte: char| !byte.is_alphanumeric() && byte != '_' && byte != '$');
            let is_definition = ["const", "let", "function", "class", "async"];
            if words.next().is_some_and(|word| is_definition.contains(&word)) {
                let name = words.find(|word| *word != "function").unwrap_or_default();
                assert!(names.insert(name.to_owned()), "two modules define {name}");
            }
        }
        assert!(names.contains("bytes"), "{names:?}");
    }

    #[test]
    fn a_report_loads_nothing_and_its_data_cannot_end_the_script() {
        let mut reading = Reading::default();
        reading.add(crate::board::Topic::Plan, r#"{"name":"</script><b>"}"#);
        let html = html(&reading);
        assert!(html.contains("\\u003c/script>\\u003cb>"));
        assert!(!html.contains("href=\"/style.css\"") && !html.contains("src=\"/"));
        assert_eq!(html.matches("</script>").count(), 2);
    }
}
