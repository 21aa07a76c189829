//! Checks that imports between the files of a crate point down, and never form a cycle.
//!
//! `xtask/floors.txt` lists the floors; its head explains the format. [`check`] compares them with
//! what [`modules`](super::modules) finds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::modules::{Import, Tree};
use super::problem::{Problem, Rule};

/// The file that lists the floors.
pub const FLOORS: &str = "xtask/floors.txt";

/// The floors of one crate.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Floors {
    /// The path of the crate's folder.
    pub folder: String,
    /// The line of the list that begins the crate, from 1.
    line: usize,
    /// The floors, top first.
    floors: Vec<Floor>,
}

#[derive(Debug, PartialEq, Eq)]
struct Floor {
    names: Vec<String>,
    is_recursive: bool,
    line: usize,
}

/// Parses the list. Each problem names its line.
pub fn parse(text: &str) -> (Vec<Floors>, Vec<Problem>) {
    let mut crates: Vec<Floors> = Vec::new();
    let mut problems = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let (number, line) = (number + 1, line.trim());
        let mut wrong = |what: String| problems.push(Problem::at(Rule::Floor, FLOORS, number, what));
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(folder) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            if crates.iter().any(|known| known.folder == folder) {
                wrong(format!("[{folder}] occurs twice"));
            }
            crates.push(Floors { folder: folder.to_owned(), line: number, floors: Vec::new() });
            continue;
        }
        let Some(own) = crates.last_mut() else {
            wrong("this floor precedes the first [PATH OF A CRATE]".into());
            continue;
        };
        let is_recursive = line.ends_with(RECURSIVE);
        let names: Vec<String> =
            line.trim_end_matches(RECURSIVE).split_whitespace().map(str::to_owned).collect();
        if is_recursive && own.floors.iter().any(|floor| floor.is_recursive) {
            wrong(format!("a second {RECURSIVE} floor of {}: one is allowed", own.folder));
        }
        for name in &names {
            if own.floors.iter().any(|floor| floor.names.contains(name)) {
                wrong(format!("{name} is on two floors of {}", own.folder));
            }
        }
        own.floors.push(Floor { names, is_recursive, line: number });
    }
    (crates, problems)
}

const RECURSIVE: &str = "(recursive)";

/// Checks a crate. If `floors` is empty, only cycles are problems.
pub fn check(floors: &Floors, tree: &Tree) -> Vec<Problem> {
    let imports = tree.imports();
    let mut problems = cycles(floors, &imports);
    if floors.floors.is_empty() {
        return problems;
    }
    let files = tree.files();
    for file in &files {
        if floors.floor_of(file).is_none() {
            let what = format!("the file is on no floor of [{}] in {FLOORS}", floors.folder);
            problems.push(Problem::whole(Rule::Floor, file, what));
        }
    }
    for floor in &floors.floors {
        for name in &floor.names {
            let is_there = |file: &&str| floors.is_on(file, name);
            if !files.iter().any(is_there) && !tree.test_files.iter().any(|file| is_there(&file.as_str())) {
                let what = format!("[{}] has no file or folder `{name}`", floors.folder);
                problems.push(Problem::at(Rule::Floor, FLOORS, floor.line, what));
            }
        }
    }
    problems.extend(imports.iter().filter_map(|import| floors.points_up(import)));
    problems
}

impl Floors {
    /// Returns a crate without floors.
    pub fn of(folder: &str) -> Floors {
        Floors { folder: folder.to_owned(), ..Floors::default() }
    }

    /// Returns the number of a file's floor, counted from 1 at the top. 0 is the root of the crate.
    fn floor_of(&self, file: &str) -> Option<usize> {
        let inside = self.inside(file);
        if matches!(inside, "lib" | "main")
            && !self.floors.iter().any(|floor| floor.names.iter().any(|name| name == inside))
        {
            return Some(0);
        }
        let longest =
            |floor: &Floor| floor.names.iter().filter(|name| self.is_on(file, name)).map(String::len).max();
        let floors = self.floors.iter().enumerate();
        let fitting = floors.filter_map(|(number, floor)| Some((longest(floor)?, number + 1)));
        fitting.max().map(|(_, number)| number)
    }

    /// Returns a file's path inside `src`, without its extension.
    fn inside<'a>(&self, file: &'a str) -> &'a str {
        let inside = file.strip_prefix(&self.folder).unwrap_or(file).trim_start_matches("/src/");
        let inside = inside.strip_suffix(".rs").unwrap_or(inside);
        inside.strip_suffix("/mod").unwrap_or(inside)
    }

    /// Returns whether a file is `name` or in the folder `name`.
    fn is_on(&self, file: &str, name: &str) -> bool {
        self.inside(file).strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    fn points_up(&self, import: &Import) -> Option<Problem> {
        let (from, to) = (self.floor_of(&import.from)?, self.floor_of(&import.to)?);
        if from <= to {
            return None;
        }
        let name = |floor: usize| match floor {
            0 => "the crate's root".to_owned(),
            floor => format!("floor {floor} `{}`", self.floors[floor - 1].names.join(" ")),
        };
        let what = format!(
            "{} imports {} ({}): imports point down ({FLOORS}:{})",
            name(from),
            name(to),
            import.to,
            self.line
        );
        Some(Problem::at(Rule::Floor, &import.from, import.line, what))
    }
}

// ---- Cycles

/// Returns every set of files that import each other in a cycle, except those of the recursive
/// floor, which are allowed.
fn cycles(floors: &Floors, imports: &[Import]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for knot in knots(imports) {
        let mut of_knot = knot.iter().map(|file| floors.floor_of(file));
        let first = of_knot.next().flatten();
        let is_allowed = first.is_some_and(|floor| {
            floor > 0 && floors.floors[floor - 1].is_recursive && of_knot.all(|other| other == first)
        });
        if !is_allowed {
            problems.push(describe(floors, &knot, imports));
        }
    }
    problems
}

/// Creates a problem that names all files of such a set and a shortest cycle, import by import.
fn describe(floors: &Floors, knot: &BTreeSet<&str>, imports: &[Import]) -> Problem {
    let cycle = knot.iter().filter_map(|file| shortest_cycle(file, knot, imports)).min_by_key(Vec::len);
    let name = |file: &str| floors.inside(file).to_owned();
    let step = |import: &Import| {
        let from = import.from.strip_prefix(&floors.folder).unwrap_or(&import.from);
        format!("{}:{} imports {}", from.trim_start_matches("/src/"), import.line, name(&import.to))
    };
    let steps: Vec<String> = cycle.into_iter().flatten().map(step).collect();
    let all: Vec<String> = knot.iter().map(|file| name(file)).collect();
    let what =
        format!("{} files import each other in a cycle: {}; {}", all.len(), all.join(" "), steps.join(", "));
    Problem::whole(Rule::Cycle, knot.first().copied().unwrap_or_default(), what)
}

/// Returns a shortest chain of imports that leads from a file back to it.
fn shortest_cycle<'a>(start: &str, knot: &BTreeSet<&str>, imports: &'a [Import]) -> Option<Vec<&'a Import>> {
    let mut reached_by: BTreeMap<&str, &Import> = BTreeMap::new();
    let mut open = VecDeque::from([start]);
    while let Some(file) = open.pop_front() {
        for import in imports.iter().filter(|import| import.from == file && knot.contains(&*import.to)) {
            if reached_by.contains_key(&*import.to) {
                continue;
            }
            reached_by.insert(&import.to, import);
            open.push_back(&import.to);
        }
    }
    let mut cycle = vec![*reached_by.get(start)?];
    while cycle.last()?.from != start {
        cycle.push(reached_by.get(cycle.last()?.from.as_str())?);
    }
    cycle.reverse();
    Some(cycle)
}

/// Returns the sets of files that can all reach each other by imports (strongly connected
/// components).
fn knots(imports: &[Import]) -> Vec<BTreeSet<&str>> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for import in imports {
        next.entry(&import.from).or_default().push(&import.to);
    }
    let reachable = |start: &str| {
        let mut seen = BTreeSet::new();
        let mut open: Vec<&str> = next.get(start).cloned().unwrap_or_default();
        while let Some(file) = open.pop() {
            if seen.insert(file) {
                open.extend(next.get(file).into_iter().flatten());
            }
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> = next.keys().map(|file| (*file, reachable(file))).collect();
    let mut knots: Vec<BTreeSet<&str>> = Vec::new();
    for (file, from_here) in &reached {
        if !from_here.contains(file) || knots.iter().any(|knot| knot.contains(file)) {
            continue;
        }
        let leads_back = |other: &&&str| reached.get(**other).is_some_and(|reached| reached.contains(file));
        knots.push(from_here.iter().filter(leads_back).copied().collect());
    }
    knots
}

#[cfg(test)]
mod tests {
    use super::super::modules::tests::tree;
    use super::*;

    const LIST: &str = "# Text\n[c]\nroof\nmiddle (recursive)\nother low\n";

    const FILES: [(&str, &str); 6] = [
        (
            "c/src/lib.rs",
            "mod roof;\nmod middle;\nmod other;\nmod low;\npub use low::Low;\npub struct Root;\n",
        ),
        ("c/src/roof.rs", "use crate::{Low, middle::one};\npub struct Roof;\n"),
        ("c/src/middle/mod.rs", "mod one;\nmod two;\n"),
        ("c/src/middle/one.rs", "use super::two;\nuse crate::low;\n"),
        ("c/src/other.rs", "use crate::low::Low;\n"),
        ("c/src/low.rs", "pub struct Low;\n"),
    ];

    /// Returns the problems of the crate above after the text of some of its files is replaced.
    fn problems(list: &str, changes: &[(&str, &str)]) -> Vec<String> {
        let mut files: Vec<(&str, &str)> = FILES.to_vec();
        files.push(("c/src/middle/two.rs", "use super::one;\n"));
        for (path, text) in changes {
            match files.iter_mut().find(|(name, _)| name == path) {
                Some(file) => file.1 = text,
                None => files.push((path, text)),
            }
        }
        let (crates, problems) = parse(list);
        assert_eq!(problems.len(), 0, "{}", problems[0]);
        check(&crates[0], &tree(&files)).iter().map(ToString::to_string).collect()
    }

    fn one(list: &str, changes: &[(&str, &str)], expected: &str) {
        let problems = problems(list, changes);
        assert_eq!(problems, [expected]);
    }

    #[test]
    fn imports_that_point_down_pass_and_so_does_the_cycle_of_the_recursive_floor() {
        assert_eq!(problems(LIST, &[]), Vec::<String>::new());
    }

    #[test]
    fn an_import_that_points_up_is_caught() {
        let up = "c/src/low.rs:2: floor 3 `other low` imports floor 1 `roof` (c/src/roof.rs): \
                  imports point down (xtask/floors.txt:2)";
        for text in [
            "pub struct Low;\nuse crate::roof::Roof;\n",
            "pub struct Low;\nuse super::roof::Roof;\n",
            "pub struct Low;\nuse crate::{\n    roof::Roof};\n",
            "pub struct Low;\nfn f(roof: crate::roof::Roof) {}\n",
        ] {
            let found = problems(LIST, &[("c/src/low.rs", text), ("c/src/roof.rs", "pub struct Roof;\n")]);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert_eq!(found[0].replace(":3: ", ":2: "), up, "{text}");
        }
        let from_folder =
            [("c/src/middle/one.rs", "use crate::roof::Roof;"), ("c/src/roof.rs", "pub struct Roof;")];
        one(
            LIST,
            &from_folder,
            "c/src/middle/one.rs:1: floor 2 `middle` imports floor 1 `roof` (c/src/roof.rs): \
             imports point down (xtask/floors.txt:2)",
        );
    }

    #[test]
    fn an_import_of_what_the_root_defines_is_caught() {
        one(
            LIST,
            &[("c/src/low.rs", "use crate::Root;\npub struct Low;")],
            "c/src/low.rs:1: floor 3 `other low` imports the crate's root (c/src/lib.rs): \
             imports point down (xtask/floors.txt:2)",
        );
    }

    #[test]
    fn tests_may_import_what_they_like() {
        let text = "pub struct Low;\n#[cfg(test)]\nmod tests {\n    use crate::roof::Roof;\n}\n";
        assert_eq!(problems(LIST, &[("c/src/low.rs", text)]), Vec::<String>::new());
    }

    #[test]
    fn a_cycle_on_one_floor_is_caught() {
        let cycle = [("c/src/low.rs", "pub struct Low;\nuse crate::other::f;\n")];
        let found = "c/src/low.rs: 2 files import each other in a cycle: low other; \
                     low.rs:2 imports other, other.rs:1 imports low";
        one(LIST, &cycle, found);
        let no_other = ("c/src/middle/two.rs", "");
        one("[c]", &[cycle[0], no_other], found);
    }

    #[test]
    fn a_cycle_that_leaves_the_recursive_floor_is_caught() {
        let found = problems(LIST, &[("c/src/low.rs", "pub struct Low;\nuse crate::middle::one;\n")]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].contains("3 files import each other in a cycle: low middle/one middle/two"),
            "{found:?}"
        );
        assert!(found[1].contains("floor 3 `other low` imports floor 2 `middle`"), "{found:?}");
    }

    #[test]
    fn a_file_without_a_floor_and_a_floor_without_files_are_caught() {
        let list = LIST.replace("other low", "low");
        one(&list, &[], "c/src/other.rs: the file is on no floor of [c] in xtask/floors.txt");
        let list = LIST.replace("other low", "other low gone");
        one(&list, &[], "xtask/floors.txt:5: [c] has no file or folder `gone`");
    }

    #[test]
    fn a_list_that_says_too_much_is_caught() {
        let said = |list: &str| parse(list).1.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(said("a"), ["xtask/floors.txt:1: this floor precedes the first [PATH OF A CRATE]"]);
        assert_eq!(said("[c]\na\na b"), ["xtask/floors.txt:3: a is on two floors of c"]);
        assert_eq!(said("[c]\n[c]"), ["xtask/floors.txt:2: [c] occurs twice"]);
        let twice = said("[c]\na (recursive)\nb (recursive)");
        assert_eq!(twice, ["xtask/floors.txt:3: a second (recursive) floor of c: one is allowed"]);
    }
}
