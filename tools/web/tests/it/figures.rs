//! Intervals from counters: through restarts, nonsense and the death of the server.

use octavo_web::{History, INTERVALS_MAX, Interval, ROWS_MAX, Row};
use serde_json::{Value, json};

use crate::control::{Control, ok, server};
use crate::site::{Feed, get, serve};

#[test]
fn an_interval_has_the_differences_of_counters_and_the_amounts_at_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let control = Control::start(folder.path(), server(1, 2));
    let address = serve(control.path(), None, None);
    let interval = Feed::open(address).next("interval", |_| true);
    assert_eq!(interval["moved_bytes"], 2_097_152);
    let row = &interval["partitions"][0];
    assert_eq!((&row["counts"]["hits"], &row["counts"]["misses"]), (&json!(10), &json!(1)));
    assert_eq!(row["latency"]["hit"], json!({"count": 1, "sum_ns": 900, "buckets": [[1000, 1]]}));
    assert_eq!(
        (&row["amounts"]["min"], &row["amounts"]["high"], &row["amounts"]["max"]),
        (&json!(1), &Value::Null, &json!(7))
    );
    assert_eq!(row["amounts"]["allowed_bytes"], 8192);
    let (status, history) = get(address, "/api/history");
    let history: Value = serde_json::from_str(&history).unwrap();
    assert_eq!(status, 200);
    assert_eq!(history["recent"][0]["partitions"][1]["name"], "p1");
}

/// The kinds `store` and `bypass` are only in the answer to `latency`. Its last bucket may have no
/// bound. The kinds that `stat` has keep their finer buckets.
#[test]
fn the_latency_verb_adds_kinds_to_those_of_exports() {
    let folder = tempfile::tempdir().unwrap();
    let (mut others, mut asked) = (server(1, 1), 0);
    let control = Control::start(folder.path(), move |request| match request["do"].as_str() {
        Some("latency") => {
            asked += 1;
            let store = json!({"counts": [asked, 0, 2 * asked], "count": 3 * asked, "sum_us": 7 * asked, "max_us": 9});
            ok(
                json!({"bounds_us": [1, 2], "partitions": [{"name": "p0", "kinds": {"store": store, "hit": store}}]}),
            )
        }
        _ => others(request),
    });
    let address = serve(control.path(), None, None);
    let interval = Feed::open(address).next("interval", |_| true);
    let latency = &interval["partitions"][0]["latency"];
    assert_eq!(latency["store"], json!({"count": 3, "sum_ns": 7000, "buckets": [[1000, 1], [4000, 2]]}));
    assert_eq!(latency["hit"]["count"], 1);
}

#[test]
fn a_server_that_dies_is_reported_and_its_successor_begins_new_counters() {
    let folder = tempfile::tempdir().unwrap();
    let control = Control::start(folder.path(), server(1, 1));
    let address = serve(control.path(), None, None);
    let mut feed = Feed::open(address);
    // Far enough that the successor's counters are lower.
    let last = feed.next("interval", |interval| interval["number"].as_u64() > Some(3));
    drop(control);
    let state = feed.next("state", |state| state["up"] == false);
    assert!(state["why"].as_str().unwrap().contains("control.sock"), "{state}");
    assert_eq!(state["server"]["pid"], 1, "the page still says which server it was");
    let _control = Control::start(folder.path(), server(2, 1));
    let state = feed.next("state", |state| state["up"] == true);
    assert_eq!((&state["server"]["pid"], &state["restarts"]), (&json!(2), &json!(1)));
    let next = feed.next("interval", |_| true);
    assert_eq!(next["number"].as_u64().unwrap(), last["number"].as_u64().unwrap() + 1);
    assert_eq!(next["partitions"][0]["counts"]["hits"], 10, "no difference across the restart");
}

/// A server that is replaced between two requests never seems to be away.
#[test]
fn a_restart_that_nobody_saw_is_noticed_by_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let control = Control::start(folder.path(), server(1, 1));
    let address = serve(control.path(), None, None);
    let mut feed = Feed::open(address);
    feed.next("interval", |interval| interval["number"].as_u64() > Some(2));
    control.answer(server(9, 1));
    feed.next("state", |state| state["restarts"] == 1);
    let next = feed.next("interval", |_| true);
    assert_eq!(next["partitions"][0]["counts"]["misses"], 1);
}

#[test]
fn nonsense_from_the_socket_is_reported_and_never_ends_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let control = Control::start(folder.path(), server(1, 1));
    let address = serve(control.path(), None, None);
    let mut feed = Feed::open(address);
    feed.next("interval", |_| true);
    for (nonsense, why) in [
        ("{\"v\":1,\"ok\":", "not that of an octavo server"),
        ("[]", "not that of an octavo server"),
        ("{\"v\":2,\"ok\":{}}", "version 2"),
        ("{\"v\":1,\"ok\":[1]}", "cannot be read"),
        ("{\"v\":1,\"ok\":{\"partitions\":7}}", "cannot be read"),
        ("{\"v\":1,\"error\":{}}", "gave no reason"),
        ("{\"v\":1,\"progress\":{\"dirty_bytes\":1}}\n", "not that of an octavo server"),
        ("", "closed the connection"),
    ] {
        control.answer(move |_| nonsense.to_owned());
        feed.next("state", |state| state["why"].as_str().is_some_and(|told| told.contains(why)));
        control.answer(server(1, 1));
        feed.next("state", |state| state["up"] == true);
    }
    feed.next("interval", |_| true);
    assert_eq!(get(address, "/").0, 200);
}

#[test]
fn a_history_has_a_fixed_size_and_holds_sums_of_an_hour() {
    let interval = |number: u64, partitions: usize| Interval {
        number,
        time_ms: 1000 * number,
        length_ms: 1000,
        partitions: (0..partitions)
            .map(|number| Row {
                name: format!("p{number}"),
                counts: octavo_web::Counts { hits: 1, ..Default::default() },
                ..Row::default()
            })
            .collect(),
        ..Interval::default()
    };
    let mut history = History::new();
    for number in 1..=7200 {
        history.push(interval(number, 2));
    }
    assert_eq!(history.held(), (2 * INTERVALS_MAX, 4 * INTERVALS_MAX));
    let told = serde_json::to_value(&history).unwrap();
    let hour = told["hour"].as_array().unwrap();
    assert_eq!(hour[0]["time_ms"], 3_610_000, "the oldest interval of the hour ended so long ago");
    assert!(hour.iter().all(|interval| interval["length_ms"] == 10_000));
    assert!(hour.iter().all(|interval| interval["partitions"][1]["counts"]["hits"] == 10));
    for number in 7201..=7400 {
        history.push(interval(number, 3000));
    }
    let (_, rows) = history.held();
    assert!(rows <= 2 * ROWS_MAX, "{rows} rows");
    assert_eq!(history.last().unwrap().number, 7400);
}
