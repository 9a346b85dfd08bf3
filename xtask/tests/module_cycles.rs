//! No module uses, directly or by way of others, a module that uses it.
//!
//! Takes the Rust files of every crate; follows `use` declarations and paths that begin with
//! `crate`, `super` or `self`. A module's tests may use what they like. Never resolves re-exports:
//! a path to one leads to the module in which it stands.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Attribute, ItemMod, ItemUse, UseTree};

/// A module's path from the crate's root: `["object", "elf"]`.
type ModulePath = Vec<String>;
/// By module, the modules that it uses.
type Dependencies = BTreeMap<ModulePath, BTreeSet<ModulePath>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The paths that one file names.
#[derive(Default)]
struct NamedPaths(Vec<ModulePath>);

impl NamedPaths {
    fn of_use(&mut self, tree: &UseTree, before: &mut ModulePath) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.of_use(&path.tree, before);
                before.pop();
            }
            UseTree::Name(name) => self.named(before, name.ident.to_string()),
            UseTree::Rename(name) => self.named(before, name.ident.to_string()),
            UseTree::Glob(_) => self.0.push(before.clone()),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.of_use(tree, before)),
        }
    }

    fn named(&mut self, before: &ModulePath, name: String) {
        self.0.push(before.iter().cloned().chain([name]).collect());
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test")
    })
}

impl Visit<'_> for NamedPaths {
    fn visit_item_mod(&mut self, module: &ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &ItemUse) {
        self.of_use(&item.tree, &mut ModulePath::new());
    }

    /// `pub(super)` says who may use an item. It uses nothing.
    fn visit_visibility(&mut self, _: &syn::Visibility) {}

    fn visit_path(&mut self, path: &syn::Path) {
        self.0.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }
}

/// The modules of a crate by path, each with its file. The root, and what is for tests only, are
/// left out.
fn modules(source: &Path) -> BTreeMap<ModulePath, PathBuf> {
    let mut found = BTreeMap::new();
    let mut directories = vec![source.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let stem = path.strip_prefix(source).unwrap().with_extension("");
                let mut name: ModulePath =
                    stem.iter().map(|part| part.to_string_lossy().into_owned()).collect();
                if name.last().is_some_and(|last| last == "mod") {
                    name.pop();
                }
                let test = name.iter().any(|part| part == "tests" || part.ends_with("_tests"));
                if !test && !matches!(name[..], [ref only] if only == "lib" || only == "main") {
                    found.insert(name, path);
                }
            }
        }
    }
    found
}

/// Where a path leads from `module`, as a path from the crate's root. `None`: out of the crate.
fn absolute(module: &ModulePath, named: &[String]) -> Option<ModulePath> {
    match named.first()?.as_str() {
        "crate" => Some(named[1..].to_vec()),
        "self" => Some([module, &named[1..]].concat()),
        "super" => {
            let ups = named.iter().take_while(|part| *part == "super").count();
            let kept = module.len().checked_sub(ups)?;
            Some([&module[..kept], &named[ups..]].concat())
        }
        _ => None,
    }
}

fn dependencies(source: &Path) -> Dependencies {
    let modules = modules(source);
    let used_by = |(module, file): (&ModulePath, &PathBuf)| {
        let text = std::fs::read_to_string(file).unwrap();
        let mut named = NamedPaths::default();
        named.visit_file(&syn::parse_file(&text).unwrap_or_else(|e| panic!("{file:?}: {e}")));
        let used = named.0.iter().filter_map(|path| absolute(module, path)).filter_map(|path| {
            let longest = (1..=path.len()).rev().map(|len| path[..len].to_vec());
            longest.into_iter().find(|prefix| modules.contains_key(prefix))
        });
        (module.clone(), used.filter(|used| used != module).collect())
    };
    modules.iter().map(used_by).collect()
}

/// The modules that `from` uses, directly or by way of others.
fn reachable(dependencies: &Dependencies, from: &ModulePath) -> BTreeSet<ModulePath> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        for used in &dependencies[module] {
            if found.insert(used.clone()) {
                open.push(used);
            }
        }
    }
    found
}

/// Each module that reaches itself, with the modules that it uses directly.
fn cycles(dependencies: &Dependencies) -> Vec<String> {
    (dependencies.iter())
        .filter(|(module, _)| reachable(dependencies, module).contains(*module))
        .map(|(module, used)| {
            let used: Vec<String> = used.iter().map(|path| path.join("::")).collect();
            format!("{} uses {}", module.join("::"), used.join(", "))
        })
        .collect()
}

#[test]
fn no_module_uses_itself_by_way_of_others() {
    let crates = std::fs::read_dir(root().join("crates")).unwrap();
    let sources =
        crates.map(|entry| entry.unwrap().path().join("src")).filter(|path| path.is_dir());
    let mut found = Vec::new();
    let rooms = ["", "lab/", "system-tests/", "studies/", "judges/"];
    let rooms = rooms.map(|room| root().join(format!("xtask/{room}src")));
    for source in sources.chain(rooms) {
        let dependencies = dependencies(&source);
        assert!(!dependencies.is_empty(), "{} has no modules", source.display());
        found.extend(
            cycles(&dependencies).iter().map(|cycle| {
                format!("{}: {cycle}", source.strip_prefix(root()).unwrap().display())
            }),
        );
    }
    assert!(found.is_empty(), "modules in cycles: {found:#?}");
}

#[test]
fn a_cycle_is_found_through_groups_paths_and_super() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("lib.rs", "mod a; mod b;");
    write("a.rs", "use crate::{b::inner::{Thing, Other}, x};");
    write("b/mod.rs", "mod inner;");
    write("b/inner.rs", "fn f() { super::super::c::g::<u8>() }");
    write("c.rs", "pub fn g<T>() {} #[cfg(test)] mod tests { use crate::a; }");
    assert_eq!(cycles(&dependencies(directory.path())), [""; 0]);
    write("c.rs", "pub fn g<T>() { crate::a::h() }");
    let found = cycles(&dependencies(directory.path()));
    assert_eq!(found.len(), 3, "{found:?}");
}
