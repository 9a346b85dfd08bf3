//! Images made by hand: every form gives the same tree, and a hostile or damaged one is refused by
//! the path that is wrong.

use super::examples::{Entry, archive, docker, gzip, oci, tar};
use super::*;
use std::io::Cursor;
use tar::EntryType::{self, Directory, Fifo, Link, Regular, Symlink};

fn of_archive(bytes: &[u8]) -> Result<ContainerImage> {
    ContainerImage::of_archive(Cursor::new(bytes), &mut Budget::of(64 << 20))
}

fn of_layers(layers: &[&[Entry<'_>]]) -> Result<ContainerImage> {
    let layers: Vec<Vec<u8>> = layers.iter().map(|entries| tar(entries)).collect();
    of_archive(&archive(&docker(&layers)))
}

fn paths(image: &ContainerImage) -> Vec<&str> {
    image.tree.nodes().map(|(path, _)| path).collect()
}

fn said<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("it was accepted"),
        Err(error) => format!("{error:#}"),
    }
}

const LOWER: &[Entry<'static>] = &[
    ("bin/", Directory, ""),
    ("bin/busybox", Regular, "program"),
    ("bin/sh", Link, "bin/busybox"),
    ("app/", Directory, ""),
    ("app/old", Regular, "old"),
    ("app/data/", Directory, ""),
    ("app/data/one", Regular, "1"),
];
const UPPER: &[Entry<'static>] = &[
    ("app/.wh.old", Regular, ""),
    ("app/data/two", Regular, "2"),
    ("app/data/.wh..wh..opq", Regular, ""),
    ("app/new", Symlink, "../bin/sh"),
];

#[test]
fn every_form_of_an_image_gives_the_same_tree() {
    let layers = [tar(LOWER), tar(UPPER)];
    let image = of_archive(&archive(&docker(&layers))).unwrap();
    let expected = ["app", "app/data", "app/data/two", "app/new", "bin", "bin/busybox", "bin/sh"];
    assert_eq!(paths(&image), expected);
    assert_eq!(image.tree.read("app/new"), Some(&b"program"[..]));
    let environment = [("PATH", "/app:/bin"), ("A", "b=c")];
    assert_eq!(image.environment, environment.map(|(a, b)| (a.to_owned(), b.to_owned())));
    assert_eq!(image.working_directory.as_deref(), Some("/app"));

    let zstd: fn(&[u8]) -> Vec<u8> = |bytes| zstd::encode_all(bytes, 1).unwrap();
    let xz: fn(&[u8]) -> Vec<u8> = |bytes| {
        let mut packed = Vec::new();
        liblzma::read::XzEncoder::new(bytes, 1).read_to_end(&mut packed).unwrap();
        packed
    };
    for pack in [<[u8]>::to_vec, gzip, zstd, xz] {
        let files = oci("amd64", &layers, pack);
        assert_eq!(of_archive(&archive(&files)).unwrap(), image);
        assert_eq!(of_archive(&pack(&archive(&files))).unwrap(), image);
        let directory = tempfile::tempdir().unwrap();
        for (name, bytes) in &files {
            let path = directory.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        assert_eq!(ContainerImage::open(directory.path()).unwrap(), image);
    }
    assert_eq!(of_archive(&gzip(&archive(&docker(&layers)))).unwrap().digest(), image.digest());
}

#[test]
fn a_tarball_and_a_directory_of_a_root_file_system_have_the_same_tree() {
    let entries = [LOWER, &[("app/.wh.kept", Regular, "a name like others")]].concat();
    let bytes = tar(&entries);
    let image = of_archive(&bytes).unwrap();
    assert_eq!(of_archive(&gzip(&bytes)).unwrap(), image);
    assert!(image.tree.contains("app/old") && image.tree.contains("app/.wh.kept"));
    assert_eq!(image.environment, []);

    let directory = tempfile::tempdir().unwrap();
    let mut unpack = std::process::Command::new("tar")
        .args(["--extract", "--directory"])
        .arg(directory.path())
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut unpack.stdin.take().unwrap(), &bytes).unwrap();
    assert!(unpack.wait().unwrap().success());
    let read = ContainerImage::open(directory.path()).unwrap();
    assert_eq!(read.digest(), image.digest());
    // A name that images have, in a root file system.
    let strange = tar(&[("manifest.json", Regular, "{}"), ("bin/sh", Regular, "x")]);
    assert!(of_archive(&strange).unwrap().tree.contains("manifest.json"));
}

#[test]
fn whiteouts_leave_alone_what_their_own_layer_has() {
    let image = of_layers(&[
        &[("d/a", Regular, "1"), ("d/b", Regular, "1"), ("e/f", Regular, "1"), ("g", Regular, "")],
        &[
            ("d/a", Regular, "2"),
            (".wh.d", Regular, ""),
            ("e/h", Regular, "2"),
            ("e/.wh..wh..opq", Regular, ""),
            (".wh.nothing", Regular, ""),
            (".wh..wh.plnk", Regular, ""),
        ],
    ])
    .unwrap();
    assert_eq!(paths(&image), ["d", "d/a", "e", "e/h", "g"]);
    assert_eq!(image.tree.read("d/a"), Some(&b"2"[..]));
}

#[test]
fn an_upper_layer_replaces_files_directories_and_links() {
    let image = of_layers(&[
        &[
            ("dir/inside", Regular, "1"),
            ("file", Regular, "1"),
            ("link", Symlink, "dir"),
            ("usr/bin/", Directory, ""),
            ("bin", Symlink, "usr/bin"),
        ],
        &[
            ("dir", Regular, "now a file"),
            ("file/", Directory, ""),
            ("file/inside", Regular, "2"),
            ("link/", Directory, ""),
            ("bin/tool", Regular, "through the link"),
        ],
    ])
    .unwrap();
    let expected = ["bin", "dir", "file", "file/inside", "link", "usr", "usr/bin", "usr/bin/tool"];
    assert_eq!(paths(&image), expected);
    assert_eq!(image.tree.read("dir"), Some(&b"now a file"[..]));
    assert!(image.tree.contains("usr/bin/tool"));
}

#[test]
fn what_leaves_the_image_is_refused_by_its_path() {
    let hostile: [(Entry<'_>, &str); 9] = [
        (("../etc/passwd", Regular, "x"), "../etc/passwd"),
        (("a/../../b", Regular, "x"), "a/../../b"),
        (("out", Symlink, "../secret"), "/out"),
        (("a/b/out", Symlink, "../../../secret"), "/a/b/out"),
        (("root", Symlink, "/../secret"), "/root"),
        (("hard", Link, "../secret"), "/hard"),
        (("hard", Link, "a/../../secret"), "/hard"),
        (("hard", Link, "nothing"), "/hard"),
        (("d/.wh...", Regular, ""), "/d/.wh..."),
    ];
    for (entry, path) in hostile {
        let message = said(of_layers(&[LOWER, &[entry]]));
        assert!(message.contains(path), "{message}");
    }
    // Links to the host's files mean the guest's files: they never lead out of the tree.
    let through = of_layers(&[&[
        ("etc", Symlink, "/"),
        ("etc/passwd", Regular, "the image's own"),
        ("deep/up", Symlink, "../.."),
    ]]);
    assert!(said(through).contains("/deep/up"));
    let nearer = of_layers(&[&[("a/b/c", Symlink, "/"), ("a/b/c/up", Symlink, "../../x")]]);
    assert!(said(nearer).contains("/up"));
    let inside =
        of_layers(&[&[("etc", Symlink, "/"), ("etc/passwd", Regular, "the image's own")]]).unwrap();
    assert_eq!(paths(&inside), ["etc", "passwd"]);
}

#[test]
fn links_of_the_archive_itself_stay_in_it() {
    let layer = tar(LOWER);
    let with = |kind: EntryType, target: &str| {
        let mut files = docker(std::slice::from_ref(&layer));
        files.retain(|(name, _)| name != "0/layer.tar");
        files.push(("other/layer.tar".into(), layer.clone()));
        let mut bytes = archive(&files);
        // Without the end.
        bytes.truncate(bytes.len() - 1024);
        bytes.extend(tar(&[("0/layer.tar", kind, target)]));
        of_archive(&bytes)
    };
    assert!(with(Symlink, "../other/layer.tar").unwrap().tree.contains("bin/sh"));
    assert!(with(Link, "other/layer.tar").unwrap().tree.contains("bin/sh"));
    for (kind, target) in
        [(Symlink, "../../secret"), (Symlink, "/etc/passwd"), (Link, "../secret"), (Link, "0/no")]
    {
        assert!(said(with(kind, target)).contains("0/layer.tar"), "{target}");
    }
    assert!(said(with(Symlink, "layer.tar")).contains("too many links"));

    let directory = tempfile::tempdir().unwrap();
    let inside = directory.path().join("image");
    std::fs::create_dir(&inside).unwrap();
    for (name, bytes) in docker(&[]) {
        std::fs::write(inside.join(name), bytes).unwrap();
    }
    std::fs::write(directory.path().join("outside.json"), "secret").unwrap();
    std::fs::remove_file(inside.join("c.json")).unwrap();
    std::os::unix::fs::symlink("../outside.json", inside.join("c.json")).unwrap();
    let message = said(ContainerImage::open(&inside));
    assert!(message.contains("c.json: a link that leaves the image"), "{message}");
}

#[test]
fn digests_are_compared() {
    let layers = [tar(LOWER)];
    for changed in ["config", "manifest", "layer", "index"] {
        let mut files = oci("amd64", &layers, gzip);
        let needle: &[u8] = match changed {
            "config" => b"\"diff_ids\":[",
            "manifest" => b"\"layers\":[",
            "layer" => &[0x1f, 0x8b],
            _ => b"\"unknown\"",
        };
        let blob = files
            .iter_mut()
            .find(|(_, bytes)| bytes.windows(needle.len()).any(|window| window == needle));
        let (name, bytes) = blob.unwrap();
        // A byte that changes no meaning: a space for JSON, the time of a gzip header.
        match changed {
            "layer" => bytes[4] ^= 1,
            _ => bytes.push(b' '),
        }
        let name = name.clone();
        let message = said(of_archive(&archive(&files)));
        assert!(message.contains(&name) && message.contains("SHA-256"), "{changed}: {message}");
    }
    // `docker save` has no digest of the stored layer, but of the unpacked one.
    let mut files = docker(&layers);
    let layer = files.iter_mut().find(|(name, _)| name == "0/layer.tar").unwrap();
    let at = layer.1.windows(7).position(|window| window == b"program").unwrap();
    layer.1[at] = b'P';
    let message = said(of_archive(&archive(&files)));
    assert!(message.contains("0/layer.tar") && message.contains("damaged"), "{message}");
}

#[test]
fn images_that_are_no_use_say_why() {
    let layers = [tar(LOWER)];
    let arm = said(of_archive(&archive(&oci("arm64", &layers, gzip))));
    assert!(arm.contains("nothing for amd64"), "{arm}");
    let mut two = docker(&layers);
    let manifest = two.iter_mut().find(|(name, _)| name == "manifest.json").unwrap();
    let row = String::from_utf8(manifest.1.clone()).unwrap();
    let row = row.trim_matches(['[', ']']).to_owned();
    manifest.1 = format!("[{row},{}]", row.replace("app:latest", "other:1")).into_bytes();
    let message = said(of_archive(&archive(&two)));
    assert!(message.contains("2 images (app:latest, other:1)"), "{message}");
    let mut without = docker(&layers);
    without.retain(|(name, _)| name != "0/layer.tar");
    let message = said(of_archive(&archive(&without)));
    assert!(message.contains("0/layer.tar: the image lacks this file"), "{message}");
    let manifest = without.iter_mut().find(|(name, _)| name == "manifest.json").unwrap();
    manifest.1.pop();
    without.push(("repositories".into(), b"{}".to_vec()));
    let message = said(of_archive(&archive(&without)));
    assert!(message.contains("manifest.json") && message.contains("EOF"), "{message}");
    assert!(said(of_archive(b"no archive")).contains("tar"));
    assert!(said(of_archive(&[])).contains("neither an image"));
    assert!(said(of_archive(b"BZh91AY")).contains("bzip2"));
    let own = of_layers(&[&[("kernlane/x", Regular, "")]]).unwrap();
    assert!(said(own.guest_tree()).contains("/kernlane"));
}

#[test]
fn a_small_archive_cannot_become_a_large_tree() {
    let zeros = "0".repeat(1 << 20);
    let layer = tar(&[("zeros", Regular, &zeros)]);
    let layers: Vec<Vec<u8>> = (0..8).map(|_| layer.clone()).collect();
    let files = oci("amd64", &layers, gzip);
    assert!(of_archive(&archive(&files)).is_ok());
    let bounded =
        ContainerImage::of_archive(Cursor::new(archive(&files)), &mut Budget::of(4 << 20));
    let message = said(bounded);
    assert!(message.contains("/zeros: more than 4 MB"), "{message}");
    let packed = gzip(&tar(&[("zeros", Regular, &zeros)]));
    let bounded = ContainerImage::of_archive(Cursor::new(packed), &mut Budget::of(1 << 19));
    assert!(said(bounded).contains("unpacked, the archive has more than 0 MB"));
}

#[test]
fn the_guest_gets_what_a_runtime_would_give_and_nothing_is_replaced() {
    let image = of_layers(&[&[
        ("etc/passwd", Regular, "own"),
        ("etc/hosts", Regular, ""),
        ("tmp", Symlink, "var/tmp"),
        ("var/tmp/", Directory, ""),
        ("init", Regular, "the image's init"),
        ("pipe", Fifo, ""),
    ]])
    .unwrap();
    let tree = image.guest_tree().unwrap();
    assert_eq!(tree.read("etc/passwd"), Some(&b"own"[..]));
    assert_eq!(tree.read("etc/hosts"), Some(&b"127.0.0.1 localhost guest\n"[..]));
    assert_eq!(tree.read("init"), Some(&b"the image's init"[..]));
    for directory in ["dev", "proc", "root", "run", "sys"] {
        assert!(tree.contains(directory), "{directory}");
    }
    assert!(!tree.contains("usr") && tree.resolve("tmp").unwrap().0 == "var/tmp");
    let mut archive = Vec::new();
    tree.write(&mut archive).unwrap();
}

#[test]
fn a_damaged_image_gives_an_error_or_files_within_its_limit() {
    let layers = [tar(LOWER), tar(UPPER)];
    let good = [archive(&docker(&layers)), archive(&oci("amd64", &layers, gzip)), tar(LOWER)];
    // An image that is cut off has no file that the whole one does not have.
    for bytes in &good {
        let whole = of_archive(bytes).unwrap();
        let mut refused = 0;
        for length in (0..bytes.len()).step_by(61) {
            match of_archive(&bytes[..length]) {
                Ok(part) => {
                    for (path, node) in part.tree.nodes() {
                        let same = whole.tree.nodes().any(|all| all == (path, node));
                        assert!(same, "{path} of {length} bytes");
                    }
                }
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 0);
    }
    let mut state = 1u64;
    for round in 0..1500 {
        let mut bytes = good[round % good.len()].clone();
        for _ in 0..1 + state % 4 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = (state >> 20) as u8;
        }
        bytes.truncate(bytes.len() - (state >> 40) as usize % 700);
        let _ = try_image(&bytes, 16 << 20);
    }
}
