//! Checks that no file is longer than [`LINES_MAX`] lines and no function longer than
//! [`FUNCTION_LINES_MAX`]. Tests do not count.
//!
//! Tests are files in a `tests` folder, files that only tests compile, and items under `#[test]` or
//! `#[cfg(test)]`.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, Item, Signature};

use super::modules::{attributes, is_for_tests};
use super::problem::{Problem, Rule};

/// The most lines of a file.
pub const LINES_MAX: usize = 600;

/// The most lines of a function, from the line with its `fn` to its closing brace.
pub const FUNCTION_LINES_MAX: usize = 80;

/// Checks a file. The caller leaves out files that only contain tests.
pub fn check(path: &str, text: &str) -> Vec<Problem> {
    let parsed = match syn::parse_file(text) {
        Ok(parsed) => parsed,
        Err(error) => {
            let line = error.span().start().line;
            return vec![Problem::at(Rule::Lines, path, line, format!("cannot parse this file: {error}"))];
        }
    };
    let mut sizes = Sizes { path, test_lines: 0, problems: Vec::new() };
    sizes.visit_file(&parsed);
    let lines = text.lines().count() - sizes.test_lines;
    if lines > LINES_MAX {
        let what = format!("{lines} lines without its tests, {LINES_MAX} are allowed: split the file");
        sizes.problems.push(Problem::whole(Rule::Lines, path, what));
    }
    sizes.problems
}

struct Sizes<'a> {
    path: &'a str,
    test_lines: usize,
    problems: Vec<Problem>,
}

impl Sizes<'_> {
    fn function(&mut self, signature: &Signature, block: &Block) {
        let first = signature.fn_token.span.start().line;
        let lines = block.brace_token.span.close().end().line + 1 - first;
        if lines > FUNCTION_LINES_MAX {
            let what = format!(
                "`{}` has {lines} lines, {FUNCTION_LINES_MAX} are allowed: split the function",
                signature.ident
            );
            self.problems.push(Problem::at(Rule::Function, self.path, first, what));
        }
    }
}

impl<'ast> Visit<'ast> for Sizes<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_for_tests(attributes(item)) {
            let span = item.span();
            self.test_lines += span.end().line + 1 - span.start().line;
        } else {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.function(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            self.function(&function.sig, &function.block);
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.function(&function.sig, block);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the problems of a file with this text.
    fn wrong(text: &str) -> Vec<String> {
        check("a.rs", text).into_iter().map(|problem| problem.to_string()).collect()
    }

    fn function(name: &str, lines: usize) -> String {
        format!("fn {name}() {{\n{}}}\n", "    g(\"}\"); // }\n".repeat(lines - 2))
    }

    #[test]
    fn a_long_function_is_caught_wherever_it_stands() {
        assert_eq!(wrong(&function("f", 80)), Vec::<String>::new());
        let found = wrong(&(String::from("//! A.\n") + &function("f", 81)));
        assert_eq!(found, ["a.rs:2: `f` has 81 lines, 80 are allowed: split the function"]);
        for before in ["impl A {", "impl B for A {", "trait B {", "mod m {"] {
            assert_eq!(wrong(&format!("{before} {}}}", function("f", 81))).len(), 1, "{before}");
        }
        // A function inside another counts as a part of it.
        assert_eq!(wrong(&format!("fn g() {{\n{}}}\n", function("f", 79))).len(), 1);
    }

    #[test]
    fn tests_may_be_long() {
        assert!(wrong(&format!("#[test]\n{}", function("f", 200))).is_empty());
        assert!(wrong(&format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function("f", 200))).is_empty());
        assert!(wrong(&format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "fn f() {}\n".repeat(700))).is_empty());
    }

    #[test]
    fn a_long_file_is_caught() {
        assert!(wrong(&"fn f() {}\n".repeat(600)).is_empty());
        let found = wrong(&"fn f() {}\n".repeat(601));
        assert_eq!(found, ["a.rs: 601 lines without its tests, 600 are allowed: split the file"]);
        let half_tests = "fn f() {}\n".repeat(601) + "#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(wrong(&half_tests).len(), 1);
    }
}
