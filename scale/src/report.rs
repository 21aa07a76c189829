//! The tables of a [`DemoReport`], in Markdown.

use std::fmt::Write as _;

use crate::error::Result;
use crate::figures::{ClusterReport, Counts, DemoReport, LeaveReport, Pass, SingleReport};
use crate::route::Routing;

/// The report as text.
pub fn text(report: &DemoReport) -> Result<String> {
    let mut out = String::new();
    writeln!(
        out,
        "# Results\n\nWritten by `scale demo`; [README.md](README.md) says what the figures mean.\n"
    )?;
    writeln!(
        out,
        "{} files, {} MB of Parquet; {} queries. MB are 10^6 bytes, at the server.\n",
        report.files,
        mb(report.data_bytes),
        report.queries.len()
    )?;
    let verdict = match report.different.is_empty() {
        true => "all are equal".to_owned(),
        false => format!("**{} differ**: {}", report.different.len(), report.different.join("; ")),
    };
    writeln!(
        out,
        "Results: {} runs of queries were compared with an uncached run, {verdict}.",
        report.compared
    )?;
    if report.single.len() > 1 {
        side_by_side(&mut out, report)?;
        by_query(&mut out, report)?;
    }
    clusters(&mut out, "Workers", &report.clusters, &report.queries)?;
    cached(&mut out, "Copies", &report.clusters)?;
    room(&mut out, &report.scarce)?;
    if let Some(left) = &report.leave {
        leave(&mut out, left)?;
    }
    clusters(&mut out, "Ballista, executors", &report.ballista, &report.queries)?;
    cached(&mut out, "Ballista, copies", &report.ballista)?;
    Ok(out)
}

fn mb(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

fn row(out: &mut String, cells: &[String]) {
    let _ = writeln!(out, "| {} |", cells.join(" | "));
}

/// A header: the first column to the left, the others to the right.
fn head(out: &mut String, cells: &[&str]) {
    let _ = writeln!(out, "\n| {} |\n|---{}|", cells.join(" | "), "|---:".repeat(cells.len() - 1));
}

fn name_of(single: &SingleReport) -> String {
    let memory = single.memory_bytes >> 20;
    match single.kind.as_str() {
        "direct" => "no cache".into(),
        "foyer" => format!("foyer, {memory} MiB and files"),
        "octavo" => format!("Octavo, {memory} MiB"),
        _ => format!("Octavo, {memory} MiB and files"),
    }
}

fn side_by_side(out: &mut String, report: &DemoReport) -> Result<()> {
    writeln!(
        out,
        "\n## One process, side by side\n\nAll queries together. Seconds are *simulated*: the server waits \
         {} ms before each first\nbyte. Memory is the most that the process had resident, with DataFusion's own.",
        report.delay_ms
    )?;
    head(
        out,
        &[
            "",
            "cold GETs",
            "HEADs",
            "MB",
            "s",
            "warm GETs",
            "MB",
            "s",
            "restarted GETs",
            "MB",
            "s",
            "memory MiB",
        ],
    );
    for single in &report.single {
        let [cold, warm] = &single.first.passes[..] else { continue };
        let mut cells = vec![name_of(single)];
        cells.extend([
            cold.total().gets.to_string(),
            cold.total().heads.to_string(),
            mb(cold.total().bytes),
            format!("{:.1}", cold.seconds()),
        ]);
        let restarted = single.restarted.as_ref().and_then(|restarted| restarted.passes.first());
        for pass in [Some(warm), restarted] {
            match pass {
                Some(pass) => cells.extend([
                    pass.total().gets.to_string(),
                    mb(pass.total().bytes),
                    format!("{:.1}", pass.seconds()),
                ]),
                None => cells.extend(["", "", ""].map(str::to_owned)),
            }
        }
        cells.push((single.first.resident_peak_bytes >> 20).to_string());
        row(out, &cells);
    }
    Ok(())
}

fn find<'r>(report: &'r DemoReport, kind: &str) -> Option<&'r SingleReport> {
    report.single.iter().find(|single| single.kind == kind)
}

fn by_query(out: &mut String, report: &DemoReport) -> Result<()> {
    writeln!(
        out,
        "\n## One process, by query\n\nWith room for everything. Each cell: GETs / MB. Footers are read once,\n\
         when the tables are made known."
    )?;
    let mut columns: Vec<(&str, &Pass)> = Vec::new();
    let mut add = |kind: &str, cold: &'static str, warm: &'static str, restarted: &'static str| {
        let Some(single) = find(report, kind) else { return };
        columns.extend([cold, warm].into_iter().zip(&single.first.passes));
        columns.extend(single.restarted.iter().map(|again| (restarted, &again.passes[0])));
    };
    add("direct", "no cache, cold", "no cache, warm", "");
    add("foyer", "foyer, cold", "foyer, warm", "foyer, restarted");
    add("octavo", "Octavo, cold", "Octavo, warm", "");
    add("octavo-tier", "Octavo and files, cold", "Octavo and files, warm", "Octavo and files, restarted");
    let mut names = vec!["query"];
    names.extend(columns.iter().map(|(name, _)| *name));
    head(out, &names);
    let mut cells = vec!["footers".to_owned()];
    cells.extend(columns.iter().map(|(_, pass)| cell(pass.before)));
    row(out, &cells);
    for (index, query) in report.queries.iter().enumerate() {
        let mut cells = vec![query.to_string()];
        cells.extend(columns.iter().map(|(_, pass)| cell(pass.ran[index].server)));
        row(out, &cells);
    }
    let mut cells = vec!["all".to_owned()];
    cells.extend(columns.iter().map(|(_, pass)| cell(pass.total())));
    row(out, &cells);
    Ok(())
}

fn cell(counts: Counts) -> String {
    format!("{} / {}", counts.gets, mb(counts.bytes))
}

fn clusters(out: &mut String, title: &str, clusters: &[ClusterReport], queries: &[u32]) -> Result<()> {
    let mut counts: Vec<usize> = clusters.iter().map(|cluster| cluster.workers).collect();
    counts.dedup();
    for count in counts {
        writeln!(
            out,
            "\n## {title}: {count}\n\nRequests of the workers; those of the coordinator, which reads footers \
             to plan, are not in it.\nEach cell: GETs / MB."
        )?;
        let of_count = || clusters.iter().filter(|cluster| cluster.workers == count);
        let mut names = vec!["query".to_owned()];
        let mut columns = Vec::new();
        for (pass, name) in ["cold", "warm"].into_iter().enumerate() {
            for cluster in of_count() {
                names.push(format!("{}, {name}", cluster.routing));
                columns.push(&cluster.passes[pass]);
            }
        }
        head(out, &names.iter().map(String::as_str).collect::<Vec<_>>());
        for (index, query) in queries.iter().enumerate() {
            let mut cells = vec![query.to_string()];
            cells.extend(columns.iter().map(|pass| cell(pass.ran[index].server)));
            row(out, &cells);
        }
        let mut cells = vec!["all".to_owned()];
        cells.extend(columns.iter().map(|pass| cell(pass.total())));
        row(out, &cells);
        let mut cells = vec!["coordinator".to_owned()];
        cells.extend(columns.iter().map(|pass| {
            let mut sum = Counts::default();
            pass.ran.iter().for_each(|ran| sum += ran.coordinator);
            cell(sum)
        }));
        row(out, &cells);
    }
    Ok(())
}

fn cached(out: &mut String, title: &str, clusters: &[ClusterReport]) -> Result<()> {
    if clusters.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n## {title}\n\nBytes that are cached after both passes, through the distinct bytes that any worker \
         fetched. With\naffinity, at most 1.05 is wanted."
    )?;
    head(out, &["workers, routing", "distinct MB", "fetched MB", "resident MB", "resident / distinct"]);
    for cluster in clusters {
        let resident = cluster.passes.last().map_or(0, |pass| pass.cache.resident_bytes);
        let ratio = resident as f64 / cluster.distinct_bytes.max(1) as f64;
        row(
            out,
            &[
                format!("{}, {}", cluster.workers, cluster.routing),
                mb(cluster.distinct_bytes),
                mb(cluster.copies_bytes),
                mb(resident),
                format!("{ratio:.3}"),
            ],
        );
    }
    Ok(())
}

fn room(out: &mut String, scarce: &[ClusterReport]) -> Result<()> {
    let Some(big) = scarce.iter().find(|cluster| cluster.workers == 1) else { return Ok(()) };
    writeln!(
        out,
        "\n## Little room\n\nTogether, the caches have 1.2 times the distinct bytes that the queries read, \
         metadata included.\nHit ratio: bytes of reads that were in memory through all bytes of reads. \n\
         With affinity, at least 0.95 of one big cache's is wanted."
    )?;
    head(
        out,
        &[
            "workers, routing",
            "memory each, MB",
            "warm MB fetched",
            "warm hit ratio",
            "of one cache's",
            "both passes' hit ratio",
            "of one cache's",
        ],
    );
    let (big_warm, big_both) = big.hit_ratios();
    for cluster in scarce {
        let (warm, both) = cluster.hit_ratios();
        row(
            out,
            &[
                format!("{}, {}", cluster.workers, cluster.routing),
                mb(cluster.room_bytes),
                mb(cluster.passes[1].total().bytes),
                format!("{warm:.4}"),
                format!("{:.3}", warm / big_warm),
                format!("{both:.4}"),
                format!("{:.3}", both / big_both),
            ],
        );
    }
    Ok(())
}

fn leave(out: &mut String, left: &LeaveReport) -> Result<()> {
    writeln!(
        out,
        "\n## A worker leaves and returns\n\n{} workers, routing by {}. The last one leaves, and returns \
         with an empty cache. By the hash it\nhas {} of {} files, which is {:.3} of them; at most {:.3} \
         (1.2 / {}) is wanted. \n\
         While it was away, the others fetched bytes of {} files.",
        left.workers,
        Routing::Affinity.name(),
        left.moved_files,
        left.files,
        left.moved_files as f64 / left.files as f64,
        1.2 / left.workers as f64,
        left.workers,
        left.refetched_files
    )?;
    head(out, &["pass over all queries", "GETs", "MB"]);
    for pass in &left.passes {
        row(out, &[pass.name.clone(), pass.total().gets.to_string(), mb(pass.total().bytes)]);
    }
    Ok(())
}
