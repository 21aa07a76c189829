//! Requests that are refused: under other names, of other sites, and changes without the token.

use octavo_web::Token;

use crate::control::{Control, ok, server};
use crate::site::{TOKEN, ask_with, get, read_answer, send, serve};

#[test]
fn a_page_under_another_name_is_refused_so_that_rebinding_dns_is_useless() {
    let folder = tempfile::tempdir().unwrap();
    let control = Control::start(folder.path(), server(1, 1));
    let address = serve(control.path(), None, None);
    let status_of = |hosts: &[&str]| {
        let mut headers: Vec<(&str, &str)> = hosts.iter().map(|host| ("host", *host)).collect();
        headers.push(("connection", "close"));
        let (status, _, body) = read_answer(send(address, "GET /api/history", &headers, ""));
        (status, body)
    };
    assert_eq!(status_of(&["own"]).0, 200);
    assert_eq!(status_of(&["127.0.0.1:80"]).0, 200);
    let (status, why) = status_of(&["evil.example"]);
    assert!(status == 403 && why.contains("--allow-host"), "{why}");
    assert_eq!(status_of(&[]).0, 400);
    assert_eq!(status_of(&["own", "own"]).0, 400);
}

#[test]
fn requests_of_other_sites_are_refused_but_a_link_may_lead_here() {
    let folder = tempfile::tempdir().unwrap();
    let control = Control::start(folder.path(), server(1, 1));
    let address = serve(control.path(), None, None);
    let status = |line: &str, headers: &[(&str, &str)]| ask_with(address, line, headers, "").0;
    assert_eq!(status("GET /api/history", &[("origin", "http://own")]), 200);
    assert_eq!(status("GET /api/history", &[("sec-fetch-site", "same-origin")]), 200);
    for foreign in [
        ("origin", "http://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        assert_eq!(status("GET /api/history", &[foreign]), 403, "{foreign:?}");
        assert_eq!(status("GET /api/feed", &[foreign]), 403, "{foreign:?}");
        assert_eq!(status("GET /main.js", &[foreign]), 403, "{foreign:?}");
    }
    let link =
        [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
    assert_eq!(status("GET /", &link), 200);
    assert_eq!(status("GET /api/history", &link), 403);
    let frame =
        [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
    assert_eq!(status("GET /", &frame), 403);
}

#[test]
fn every_answer_forbids_the_browser_to_load_or_run_anything_from_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    let control = Control::start(folder.path(), server(1, 1));
    let address = serve(control.path(), None, None);
    for path in ["/", "/style.css", "/main.js", "/api/history", "/nothing"] {
        let (_, head, body) = ask_with(address, &format!("GET {path}"), &[], "");
        assert!(head.contains("content-security-policy: default-src 'self'; base-uri 'none'"), "{head}");
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
        assert!(!body.contains("style=\"") && !body.contains("<script>"), "{path}");
    }
    assert_eq!(get(address, "/nothing").0, 404);
    assert_eq!(ask_with(address, "DELETE /", &[], "").0, 405);
}

#[test]
fn changes_need_the_token_and_a_server_without_one_only_reads() {
    let folder = tempfile::tempdir().unwrap();
    let (send, asked) = std::sync::mpsc::channel();
    let mut others = server(1, 1);
    let control = Control::start(folder.path(), move |request| match request["do"].as_str() {
        Some("resize") => {
            send.send(request["sizes"].to_string()).unwrap();
            ok(serde_json::json!({}))
        }
        _ => others(request),
    });
    let (reads, changes) = (serve(control.path(), None, None), serve(control.path(), Some(TOKEN), None));
    let right = format!("Bearer {TOKEN}");
    let resize = |address, authorization: &[(&str, &str)]| {
        let (status, _, body) =
            ask_with(address, "POST /api/resize", authorization, r#"{"sizes":[["p0",5]]}"#);
        (status, body)
    };
    let (status, why) = resize(reads, &[("authorization", &right)]);
    assert!(status == 403 && why.contains("--token-file"), "{why}");
    assert_eq!(resize(changes, &[]).0, 401);
    for wrong in [&right[..right.len() - 1], "Bearer ", "Basic x", &format!("{right}x")] {
        assert!([401, 403].contains(&resize(changes, &[("authorization", wrong)]).0), "{wrong}");
    }
    let foreign = [("authorization", right.as_str()), ("origin", "http://evil.example")];
    assert_eq!(resize(changes, &foreign).0, 403);
    assert!(asked.try_recv().is_err(), "nothing has reached the server");
    assert_eq!(ask_with(changes, "POST /api/token", &[("authorization", &right)], "").0, 204);
    assert_eq!(resize(changes, &[("authorization", &right)]).0, 200);
    assert_eq!(asked.try_recv().unwrap(), r#"[["p0",5]]"#);
}

#[test]
fn a_token_that_could_be_guessed_or_sent_wrongly_is_refused() {
    assert!(Token::of_text(" 0123456789abcdef\n").is_ok());
    for (text, why) in [
        ("", "0 bytes"),
        ("short", "5 bytes"),
        ("0123456789 abcdef", "one word"),
        ("0123456789abcdeé", "ASCII"),
    ] {
        let complaint = Token::of_text(text).err().unwrap();
        assert!(complaint.contains(why), "{complaint}");
    }
}
