//! Questions of pages: what they ask reaches the server, and bad ones do not.

use serde_json::{Value, json};

use crate::control::{Control, error, ok, server};
use crate::site::{Feed, TOKEN, ask_with, get, serve};

#[test]
fn verbs_that_the_server_does_not_offer_are_named_and_asked_for_only_once() {
    let folder = tempfile::tempdir().unwrap();
    let (send, asked) = std::sync::mpsc::channel();
    let mut others = server(1, 1);
    let control = Control::start(folder.path(), move |request| {
        let _ = send.send(request["do"].as_str().unwrap().to_owned());
        others(request)
    });
    let address = serve(control.path(), None, None);
    let mut feed = Feed::open(address);
    let state =
        feed.next("state", |state| state["missing"].as_array().is_some_and(|missing| missing.len() == 3));
    assert_eq!(state["missing"], json!(["events", "latency", "plan"]));
    feed.next("interval", |interval| interval["number"].as_u64() > Some(5));
    let asked: Vec<String> = asked.try_iter().collect();
    for verb in ["events", "latency", "plan"] {
        assert_eq!(asked.iter().filter(|asked| *asked == verb).count(), 1, "{verb}: {asked:?}");
    }
    let (status, why) = get(address, "/api/sets?partition=p0");
    assert!(status == 501 && why.contains("does not offer it"), "{why}");
}

#[test]
fn questions_reach_the_server_with_their_names_and_bad_ones_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut others = server(1, 1);
    let control = Control::start(folder.path(), move |request| match request["do"].as_str() {
        Some("sets") => ok(json!({"asked": request["partition"]})),
        Some("files") => ok(json!({"count": 0, "files": []})),
        Some("resize") => error("\"p0\": more than memory_max"),
        _ => others(request),
    });
    let address = serve(control.path(), Some(TOKEN), None);
    let (status, sets) = get(address, "/api/sets?partition=a%20%26%22b");
    assert_eq!((status, serde_json::from_str::<Value>(&sets).unwrap()), (200, json!({"asked": "a &\"b"})));
    assert_eq!(get(address, "/api/sets").0, 400);
    assert_eq!(get(address, "/api/files").0, 200);
    let right = format!("Bearer {TOKEN}");
    let resize = |body: &str| {
        let (status, _, answer) = ask_with(address, "POST /api/resize", &[("authorization", &right)], body);
        (status, answer)
    };
    let (status, why) = resize(r#"{"sizes":[["p0",5]]}"#);
    assert!(status == 409 && why.contains("more than memory_max"), "{why}");
    for bad in [
        "",
        "{",
        "{}",
        r#"{"sizes":[]}"#,
        r#"{"sizes":[["p0",-1]]}"#,
        r#"{"sizes":[["p0",1,2]]}"#,
        r#"{"sizes":[[1,1]]}"#,
    ] {
        assert_eq!(resize(bad).0, 400, "{bad}");
    }
    let long = format!(r#"{{"sizes":[["{}",1]]}}"#, "x".repeat(20_000));
    assert_eq!(resize(&long).0, 400);
}

/// Events are numbered from 1 by each server: those after the last one are asked for, and a new
/// server's from the beginning.
#[test]
fn each_event_is_fetched_once_and_a_new_servers_from_the_beginning() {
    let folder = tempfile::tempdir().unwrap();
    let answering = |pid: u64, text: &'static str| {
        let mut others = server(pid, 1);
        move |request: &Value| match request["do"].as_str() {
            Some("events") => {
                let all = (1..=3).map(|number| json!({"number": number, "kind": "message", "text": text}));
                let fresh = all.filter(|event| event["number"].as_u64() > request["after"].as_u64());
                ok(json!({"first": 1, "next": 4, "events": fresh.collect::<Vec<Value>>()}))
            }
            _ => others(request),
        }
    };
    let control = Control::start(folder.path(), answering(1, "old"));
    let address = serve(control.path(), None, None);
    let mut feed = Feed::open(address);
    let events = feed.next("events", |_| true);
    assert_eq!(events["events"].as_array().unwrap().len(), 3);
    control.answer(answering(2, "new"));
    let events = feed.next("events", |_| true);
    let texts: Vec<&str> =
        events["events"].as_array().unwrap().iter().map(|event| event["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["old", "old", "old", "new", "new", "new"]);
}
