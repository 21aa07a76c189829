//! Parses a crate into a tree of modules, and determines which file imports which.
//!
//! An import is a `use`, or a path in code, that leads to another module of the same crate: by
//! `crate`, `self`, `super`, the name of a child, or a name that a `use` brought in. A re-export
//! (`pub use`) is not an import of the file that contains it: a use of its name imports the file
//! that defines the name. Code under `#[cfg(test)]` imports nothing, and files that are compiled
//! for tests only do not count.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Meta, Token, UseTree, Visibility};

/// The most re-exports that an import is followed through. No reasonable crate has as many.
const REDIRECTIONS_MAX: u32 = 16;

/// The modules of a crate. The root is the first.
pub struct Tree {
    modules: Vec<Module>,
    /// Files that are compiled for tests only.
    pub test_files: BTreeSet<String>,
    /// Files that cannot be parsed, with the parser's message.
    pub unreadable: Vec<(String, usize, String)>,
}

/// One file imports another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Import {
    pub from: String,
    pub to: String,
    /// The first line of `from` that imports `to`.
    pub line: usize,
}

#[derive(Default)]
struct Module {
    file: String,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// Names of the items that the module defines.
    items: BTreeSet<String>,
    names: Vec<Name>,
    globs: Vec<Vec<String>>,
    /// The paths that the module's own code imports, with their lines.
    paths: Vec<(Vec<String>, usize)>,
}

/// A name that a `use` brings into a module.
struct Name {
    name: String,
    path: Vec<String>,
}

impl Tree {
    /// Reads the crate whose root is the file `root`. `read` returns the text of a file.
    pub fn read(root: &str, read: &dyn Fn(&str) -> Option<String>) -> Tree {
        let mut tree = Tree { modules: Vec::new(), test_files: BTreeSet::new(), unreadable: Vec::new() };
        let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder).to_owned();
        tree.add_file(root, &folder, None, false, read);
        tree
    }

    /// Returns all files that are compiled into the crate.
    pub fn files(&self) -> BTreeSet<&str> {
        self.modules.iter().map(|module| module.file.as_str()).collect()
    }

    /// Returns all imports between files, each pair of files once, sorted.
    pub fn imports(&self) -> Vec<Import> {
        let mut first: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for (number, module) in self.modules.iter().enumerate() {
            for (path, line) in &module.paths {
                let Some(target) = self.resolve(number, path, 0) else { continue };
                let to = self.modules[target.module].file.as_str();
                if to != module.file {
                    let known = first.entry((&module.file, to)).or_insert(*line);
                    *known = (*known).min(*line);
                }
            }
        }
        let import =
            |((from, to), line): ((&str, &str), usize)| Import { from: from.into(), to: to.into(), line };
        first.into_iter().map(import).collect()
    }

    /// Adds the module of a file, and its children. `folder` holds the files of its children.
    fn add_file(
        &mut self,
        file: &str,
        folder: &str,
        parent: Option<usize>,
        is_test: bool,
        read: &dyn Fn(&str) -> Option<String>,
    ) -> Option<usize> {
        if is_test {
            self.test_files.insert(file.to_owned());
        }
        let text = read(file)?;
        let parsed = match syn::parse_file(&text) {
            Ok(parsed) => parsed,
            Err(error) => {
                self.unreadable.push((file.to_owned(), error.span().start().line, error.to_string()));
                return None;
            }
        };
        Some(self.add_module(file, folder, parent, is_test, &parsed.items, read))
    }

    fn add_module(
        &mut self,
        file: &str,
        folder: &str,
        parent: Option<usize>,
        is_test: bool,
        items: &[Item],
        read: &dyn Fn(&str) -> Option<String>,
    ) -> usize {
        let number = self.modules.len();
        self.modules.push(Module { file: file.to_owned(), parent, ..Module::default() });
        for item in items {
            let is_test = is_test || is_for_tests(attributes(item));
            let Item::Mod(child) = item else {
                if !is_test {
                    self.modules[number].take(item);
                }
                continue;
            };
            let name = child.ident.to_string();
            let below = format!("{folder}/{name}");
            let added = match &child.content {
                Some((_, items)) if !is_test => {
                    Some(self.add_module(file, &below, Some(number), false, items, read))
                }
                Some(_) => None,
                None => [format!("{below}.rs"), format!("{below}/mod.rs")]
                    .into_iter()
                    .find(|file| read(file).is_some())
                    .and_then(|file| self.add_file(&file, &below, Some(number), is_test, read)),
            };
            if let Some(added) = added.filter(|_| !is_test) {
                self.modules[number].children.insert(name, added);
            }
        }
        // The modules of tests were read only for the names of their files. No path may lead to
        // them.
        if is_test {
            self.modules.truncate(number);
        }
        number
    }

    /// Returns where a path in the code of `module` leads. None if the path leaves the crate or
    /// stays inside an item.
    fn resolve(&self, module: usize, path: &[String], redirections: u32) -> Option<Target> {
        if redirections > REDIRECTIONS_MAX {
            return None;
        }
        let (first, rest) = path.split_first()?;
        let here = &self.modules[module];
        match first.as_str() {
            "crate" => Some(self.walk(0, rest, redirections)),
            "self" => Some(self.walk(module, rest, redirections)),
            "super" => Some(self.walk_up(here.parent?, rest, redirections)),
            name => {
                if here.items.contains(name) {
                    return None;
                }
                if let Some(child) = here.children.get(name) {
                    return Some(self.walk(*child, rest, redirections));
                }
                self.resolve_name(module, name, rest, redirections)
            }
        }
    }

    fn walk_up(&self, module: usize, path: &[String], redirections: u32) -> Target {
        match (path.split_first(), self.modules[module].parent) {
            (Some((first, rest)), Some(parent)) if first == "super" => {
                self.walk_up(parent, rest, redirections)
            }
            _ => self.walk(module, path, redirections),
        }
    }

    /// Follows a path from a module, as far as it can be followed.
    fn walk(&self, module: usize, path: &[String], redirections: u32) -> Target {
        let here = &self.modules[module];
        let Some((first, rest)) = path.split_first() else { return Target { module, found: true } };
        if let Some(child) = here.children.get(first) {
            return self.walk(*child, rest, redirections);
        }
        if here.items.contains(first) {
            return Target { module, found: true };
        }
        self.resolve_name(module, first, rest, redirections).unwrap_or(Target { module, found: false })
    }

    /// Follows a name that a `use` brought into the module, and then the rest of the path.
    fn resolve_name(&self, module: usize, name: &str, rest: &[String], redirections: u32) -> Option<Target> {
        let here = &self.modules[module];
        for used in here.names.iter().filter(|used| used.name == name) {
            // A `use` whose first word is the name that it brings in refers to another crate.
            if used.path.first().is_some_and(|first| first == name) && !here.children.contains_key(name) {
                continue;
            }
            let path = [&used.path[..], rest].concat();
            if let Some(target) = self.resolve(module, &path, redirections + 1) {
                return Some(target);
            }
        }
        for glob in &here.globs {
            let path = [&glob[..], &[name.to_owned()], rest].concat();
            let target = self.resolve(module, &path, redirections + 1);
            if let Some(target) = target.filter(|target| target.found) {
                return Some(target);
            }
        }
        None
    }
}

/// Where a path leads: a module, and whether the path's next name is known there.
struct Target {
    module: usize,
    found: bool,
}

impl Module {
    /// Records the name and the imports of an item that is not a module.
    fn take(&mut self, item: &Item) {
        if let Item::Use(import) = item {
            let line = import.use_token.span.start().line;
            let exports = !matches!(import.vis, Visibility::Inherited);
            self.take_use(&import.tree, &mut Vec::new(), line, exports);
            return;
        }
        let name = match item {
            Item::Const(item) => Some(&item.ident),
            Item::Enum(item) => Some(&item.ident),
            Item::Fn(item) => Some(&item.sig.ident),
            Item::Macro(item) => item.ident.as_ref(),
            Item::Static(item) => Some(&item.ident),
            Item::Struct(item) => Some(&item.ident),
            Item::Trait(item) => Some(&item.ident),
            Item::Type(item) => Some(&item.ident),
            Item::Union(item) => Some(&item.ident),
            _ => None,
        };
        self.items.extend(name.map(ToString::to_string));
        Paths(&mut self.paths).visit_item(item);
        // A `use` inside a function brings its names into that function only. Here they count for
        // the whole module, which can add imports but never miss one.
        let mut inner = InnerUses(Vec::new());
        inner.visit_item(item);
        for (tree, line) in inner.0 {
            self.take_use(&tree, &mut Vec::new(), line, false);
        }
    }

    fn take_use(&mut self, tree: &UseTree, before: &mut Vec<String>, line: usize, exports: bool) {
        let name = |module: &mut Module, last: String, name: String| {
            let mut path = before.clone();
            if last != "self" {
                path.push(last);
            }
            if !exports {
                module.paths.push((path.clone(), line));
            }
            module.names.push(Name { name, path });
        };
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.take_use(&path.tree, before, line, exports);
                before.pop();
            }
            UseTree::Name(last) if last.ident == "self" => {
                let own = before.last().cloned().unwrap_or_default();
                name(self, "self".into(), own);
            }
            UseTree::Name(last) => name(self, last.ident.to_string(), last.ident.to_string()),
            UseTree::Rename(last) => name(self, last.ident.to_string(), last.rename.to_string()),
            UseTree::Glob(_) => {
                if !exports {
                    self.paths.push((before.clone(), line));
                }
                self.globs.push(before.clone());
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    let line = if exports { line } else { tree.span().start().line };
                    self.take_use(tree, before, line, exports);
                }
            }
        }
    }
}

/// Collects the paths in code, including those inside macros.
struct Paths<'a>(&'a mut Vec<(Vec<String>, usize)>);

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item_use(&mut self, _: &'ast syn::ItemUse) {}

    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        // A single lower-case name in code is a local name, never a module.
        let is_local = path.get_ident().is_some_and(|name| name.to_string().starts_with(char::is_lowercase));
        if !is_local {
            let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.0.push((names, path.span().start().line));
        }
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_macro(&mut self, inside: &'ast syn::Macro) {
        self.visit_path(&inside.path);
        self.take_tokens(&inside.tokens);
    }
}

impl Paths<'_> {
    /// Collects all chains of the form `name::name` from the tokens of a macro.
    fn take_tokens(&mut self, tokens: &TokenStream) {
        let mut names: Vec<String> = Vec::new();
        let (mut line, mut colons) = (0, 0);
        for token in tokens.clone() {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.end(&mut names, line);
                        line = name.span().start().line;
                    }
                    names.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.end(&mut names, line);
                    self.take_tokens(&group.stream());
                    colons = 0;
                }
                _ => {
                    self.end(&mut names, line);
                    colons = 0;
                }
            }
        }
        self.end(&mut names, line);
    }

    fn end(&mut self, names: &mut Vec<String>, line: usize) {
        if !names.is_empty() {
            self.0.push((std::mem::take(names), line));
        }
    }
}

/// Collects the `use` items inside functions.
struct InnerUses(Vec<(UseTree, usize)>);

impl<'ast> Visit<'ast> for InnerUses {
    fn visit_item_use(&mut self, import: &'ast syn::ItemUse) {
        self.0.push((import.tree.clone(), import.use_token.span.start().line));
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }
}

/// Returns the attributes of an item.
pub fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns whether an item is compiled for tests only: `#[test]`, or a `#[cfg]` that demands
/// `test`.
pub fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = |meta: &Meta| match meta {
            Meta::List(list) => list.parse_args::<Meta>().is_ok_and(|inside| demands_test(&inside)),
            _ => false,
        };
        attribute.path().is_ident("test") || (attribute.path().is_ident("cfg") && condition(&attribute.meta))
    })
}

/// Returns whether a condition can hold only in tests.
fn demands_test(condition: &Meta) -> bool {
    let Meta::List(list) = condition else { return condition.path().is_ident("test") };
    let inside = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    let Ok(inside) = inside else { return false };
    if list.path.is_ident("all") {
        inside.iter().any(demands_test)
    } else {
        list.path.is_ident("any") && !inside.is_empty() && inside.iter().all(demands_test)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Returns the crate of these files, the first of which is its root.
    pub fn tree(files: &[(&str, &str)]) -> Tree {
        let read = |path: &str| {
            let file = files.iter().find(|(name, _)| *name == path);
            file.map(|(_, text)| (*text).to_owned())
        };
        Tree::read(files[0].0, &read)
    }

    /// Returns the imports of a crate whose root declares `a`, `b` and `c`, as `from:line to`.
    fn imports(files: &[(&str, &str)]) -> Vec<String> {
        let root = [("c/src/lib.rs", "mod a;\nmod b;\nmod c;\npub use b::Deep;\n")];
        let tree = tree(&[&root[..], files].concat());
        assert_eq!(tree.unreadable, []);
        let name = |path: &str| path.trim_start_matches("c/src/").trim_end_matches(".rs").to_owned();
        let imports = tree.imports();
        imports
            .iter()
            .map(|import| format!("{}:{} {}", name(&import.from), import.line, name(&import.to)))
            .collect()
    }

    const B: (&str, &str) = ("c/src/b.rs", "mod d;\npub use d::Deep;\npub fn f() {}\npub struct S;\n");
    const C: (&str, &str) = ("c/src/c.rs", "pub struct C;\n");
    const D: (&str, &str) = ("c/src/b/d.rs", "pub struct Deep;\n");

    fn of_a(text: &str) -> Vec<String> {
        imports(&[("c/src/a.rs", text), B, C, D])
    }

    #[test]
    fn each_way_to_import_is_found() {
        assert_eq!(of_a("use crate::{\n    b::S,\n    c::C,\n};\n"), ["a:2 b", "a:3 c"]);
        assert_eq!(of_a("use super::b;\n"), ["a:1 b"]);
        assert_eq!(of_a("fn f() {\n    crate::b::f();\n}\n"), ["a:2 b"]);
        assert_eq!(of_a("fn f(s: &super::b::S) {}\n"), ["a:1 b"]);
        assert_eq!(of_a("fn f() {\n    assert!(crate::b::f() == ());\n}\n"), ["a:2 b"]);
        assert_eq!(of_a("fn f() {\n    use crate::b::f;\n    f()\n}\n"), ["a:2 b"]);
        assert_eq!(of_a("use crate::c::*;\n"), ["a:1 c"]);
        assert_eq!(of_a("use crate::b as other;\nfn f(d: other::d::Deep) {}\n"), ["a:1 b", "a:2 b/d"]);
        assert_eq!(of_a("impl crate::c::C {}\n"), ["a:1 c"]);
    }

    #[test]
    fn an_import_of_a_reexport_is_one_of_the_file_that_defines_it() {
        assert_eq!(of_a("use crate::Deep;\n"), ["a:1 b/d"]);
        assert_eq!(of_a("use crate::b::Deep;\n"), ["a:1 b/d"]);
        let globs =
            [("c/src/a.rs", "use crate::b::Deep;\n"), ("c/src/b.rs", "mod d;\npub use d::*;\n"), C, D];
        assert_eq!(imports(&globs), ["a:1 b/d"]);
        // The file that re-exports a name imports it only if its own code uses it.
        let used = ("c/src/b.rs", "mod d;\npub use d::Deep;\nfn f(deep: Deep) {}\n");
        assert_eq!(imports(&[("c/src/a.rs", ""), used, C, D]), ["b:3 b/d"]);
    }

    #[test]
    fn tests_and_other_crates_are_no_imports() {
        assert!(of_a("use std::fmt;\nuse b_crate::c;\nfn f(x: fmt::Result) {}\n").is_empty());
        assert!(of_a("#[cfg(test)]\nmod tests {\n    use crate::b::S;\n}\n").is_empty());
        assert!(of_a("#[cfg(all(test, loom))]\nuse crate::b::S;\n").is_empty());
        assert!(of_a("struct S;\nfn f(b: S) {}\n").is_empty());
        assert_eq!(of_a("#[cfg(not(test))]\nuse crate::b::S;\n"), ["a:2 b"]);
        assert_eq!(of_a("#[cfg(any(test, loom))]\nuse crate::b::S;\n"), ["a:2 b"]);
    }

    #[test]
    fn a_module_of_tests_in_a_file_of_its_own_is_known() {
        let files = [
            ("c/src/lib.rs", "#[cfg(test)]\nmod t;\nmod u;"),
            ("c/src/t.rs", "mod v;"),
            ("c/src/t/v.rs", "use crate::u;"),
            ("c/src/u.rs", ""),
        ];
        let tree = tree(&files);
        assert_eq!(tree.test_files.iter().collect::<Vec<_>>(), ["c/src/t.rs", "c/src/t/v.rs"]);
        assert_eq!(tree.files().into_iter().collect::<Vec<_>>(), ["c/src/lib.rs", "c/src/u.rs"]);
        assert!(tree.imports().is_empty());
    }
}
