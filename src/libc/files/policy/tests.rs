//! What can be reached under each policy, and the ways out of a directory that are none.

use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

use cap_std::fs::Dir;

use super::super::sandbox::never_wait;
use super::super::scratch::Scratch;
use super::super::{Denials, FileTable};
use super::*;

/// A directory `in` that device code is confined to, beside `secret` and `out/secret`.
struct Jail {
    scratch: Scratch,
    files: FileTable,
}

impl Jail {
    fn new(access: Access) -> Self {
        let scratch = Scratch::new();
        for name in ["in", "in/sub", "out"] {
            fs::create_dir(scratch.path().join(name)).unwrap();
        }
        for name in ["in/a", "in/sub/b", "secret", "out/secret"] {
            scratch.put(name, name.as_bytes());
        }
        let policy = FilePolicy::directory(scratch.path().join("in"), access).unwrap();
        Jail { files: FileTable::builder().policy(policy).build(), scratch }
    }

    #[cfg(unix)]
    fn link(&self, target: &str, name: &str) {
        let name = self.scratch.path().join("in").join(name);
        std::os::unix::fs::symlink(target, name).unwrap();
    }

    fn inside(&self, name: &str) -> bool {
        self.scratch.path().join("in").join(name).symlink_metadata().is_ok()
    }

    fn read(&self, path: &str) -> Result<Vec<u8>, FileError> {
        let file = self.files.open(path.as_bytes(), b"r")?;
        let bytes = self.files.read(file, 1000, 1000).bytes;
        self.files.close(file)?;
        Ok(bytes)
    }

    /// Tries everything with a path that leads out, and checks that nothing outside changed.
    fn assert_no_way_out(&self, path: &str) {
        let name = path.as_bytes();
        for mode in ["r", "w", "a", "r+", "w+", "a+", "wx"] {
            assert_eq!(self.files.as_c().fopen(name, mode.as_bytes()), 0, "{path} {mode}");
        }
        assert_eq!(self.files.as_c().remove(name), -1, "{path}");
        assert_eq!(self.files.as_c().rename(name, b"stolen"), -1, "{path}");
        assert_eq!(self.files.as_c().rename(b"a", name), -1, "{path}");
        assert_eq!(self.files.as_c().rename(b"sub", name), -1, "{path}");
        self.assert_untouched();
        assert!(!self.inside("stolen"), "{path}");
    }

    fn assert_untouched(&self) {
        for name in ["secret", "out/secret", "in/a", "in/sub/b"] {
            assert_eq!(self.scratch.get(name), name.as_bytes());
        }
        assert_eq!(fs::read_dir(self.scratch.path()).unwrap().count(), 3, "in, out, secret");
        assert_eq!(fs::read_dir(self.scratch.path().join("out")).unwrap().count(), 1);
    }
}

#[test]
fn without_a_policy_nothing_can_be_reached() {
    let files = FileTable::builder().build();
    let scratch = Scratch::new();
    scratch.put("a", b"a");
    let path = scratch.path().join("a");
    let path = path.to_str().unwrap().as_bytes();
    assert!(matches!(files.open(path, b"r"), Err(FileError::Denied(Denial::NoFiles))));
    assert!(matches!(files.remove(path), Err(FileError::Denied(Denial::NoFiles))));
    assert!(matches!(files.rename(path, path), Err(FileError::Denied(Denial::NoFiles))));
    assert_eq!(files.stats().denials, Denials { no_files: 3, ..Denials::default() });
    assert_eq!(scratch.get("a"), b"a");
}

#[test]
fn inside_the_directory_everything_works() {
    let jail = Jail::new(Access::ReadWrite);
    for path in ["a", "./a", "sub/../a", "sub/./../a", "sub//../a"] {
        assert_eq!(jail.read(path).unwrap(), b"in/a", "{path}");
    }
    let made = jail.files.open(b"sub/new", b"w").unwrap();
    jail.files.close(made).unwrap();
    jail.files.rename(b"sub/new", b"moved").unwrap();
    assert!(jail.inside("moved") && !jail.inside("sub/new"));
    jail.files.remove(b"moved").unwrap();
    assert!(!jail.inside("moved"));
    assert!(jail.files.remove(b"sub").is_err(), "it is not empty");
    jail.files.remove(b"sub/b").unwrap();
    jail.files.remove(b"sub").unwrap();
    assert_eq!(jail.files.stats().denials.total(), 0);
}

#[test]
fn dots_do_not_lead_out() {
    let jail = Jail::new(Access::ReadWrite);
    for path in [
        "../secret",
        "..",
        "../",
        "../in/a",
        "sub/../../secret",
        "./../secret",
        "sub/../../out/secret",
        "../out/secret",
        "../out/new",
        "../new",
        "../out/",
        "sub/../../",
        "..//secret",
    ] {
        jail.assert_no_way_out(path);
    }
    assert!(matches!(jail.read("../secret"), Err(FileError::Denied(Denial::Outside))));
    assert!(jail.files.stats().denials.outside > 100);
}

#[test]
fn absolute_paths_are_refused_also_to_the_directory_itself() {
    let jail = Jail::new(Access::ReadWrite);
    let root = jail.scratch.path().to_str().unwrap().to_owned();
    for path in ["/etc/passwd", "/", "//", "/../", "//etc/passwd"] {
        jail.assert_no_way_out(path);
    }
    for path in ["secret", "in/a", "in", "in/", "new"] {
        jail.assert_no_way_out(&format!("{root}/{path}"));
    }
    let inside = format!("{root}/in/a");
    assert!(matches!(jail.read(&inside), Err(FileError::Denied(Denial::Outside))));
}

#[cfg(unix)]
#[test]
fn links_do_not_lead_out() {
    let jail = Jail::new(Access::ReadWrite);
    let root = jail.scratch.path().to_str().unwrap().to_owned();
    jail.link("../out", "directory");
    jail.link(&format!("{root}/out"), "absolute-directory");
    jail.link("directory", "chain");
    jail.link("..", "sub/up");
    jail.link(".", "here");
    for path in [
        "directory/secret",
        "directory/new",
        "directory/../secret",
        "absolute-directory/secret",
        "absolute-directory/new",
        "chain/secret",
        "sub/up/../secret",
        "here/../secret",
        "here/here/directory/secret",
        "directory/",
        "directory/.",
        "directory//",
    ] {
        jail.assert_no_way_out(path);
    }
    assert_eq!(jail.read("sub/up/a").unwrap(), b"in/a", "a link that stays inside is none");
    assert_eq!(jail.read("here/here/a").unwrap(), b"in/a");
}

#[cfg(unix)]
#[test]
fn a_link_to_a_file_outside_can_be_removed_and_renamed_but_not_followed() {
    let jail = Jail::new(Access::ReadWrite);
    let root = jail.scratch.path().to_str().unwrap().to_owned();
    for (target, name) in [
        ("../secret".to_owned(), "relative"),
        (format!("{root}/secret"), "absolute"),
        ("../dangling".to_owned(), "dangling"),
        ("relative".to_owned(), "chain"),
        (format!("{root}/in/a"), "round-about"),
        ("loop".to_owned(), "loop"),
    ] {
        jail.link(&target, name);
        for mode in ["r", "w", "a", "r+", "w+", "a+"] {
            assert_eq!(jail.files.as_c().fopen(name.as_bytes(), mode.as_bytes()), 0, "{name}");
        }
    }
    jail.assert_untouched();
    jail.files.rename(b"relative", b"sub/renamed").unwrap();
    assert!(jail.read("sub/renamed").is_err());
    jail.files.remove(b"sub/renamed").unwrap();
    jail.files.remove(b"absolute").unwrap();
    jail.assert_untouched();
    // Renaming over a link replaces the link.
    jail.files.rename(b"a", b"dangling").unwrap();
    assert_eq!(jail.read("dangling").unwrap(), b"in/a");
    assert!(!jail.scratch.path().join("dangling").exists());
}

#[test]
fn slashes_at_the_end_mean_directories() {
    let jail = Jail::new(Access::ReadWrite);
    for path in ["a/", "a//", "a/.", "a/b", "new/", "new//"] {
        for mode in ["r", "w", "a", "r+"] {
            assert_eq!(jail.files.as_c().fopen(path.as_bytes(), mode.as_bytes()), 0, "{path}");
        }
        assert_eq!(jail.files.as_c().remove(path.as_bytes()), -1, "{path}");
        assert_eq!(jail.files.as_c().rename(path.as_bytes(), b"c"), -1, "{path}");
        assert_eq!(jail.files.as_c().rename(b"a", path.as_bytes()), -1, "{path}");
    }
    jail.files.rename(b"sub/", b"tub/").unwrap();
    assert_eq!(jail.read("tub/b").unwrap(), b"in/sub/b");
    jail.files.remove(b"tub/b").unwrap();
    for path in [".", "./", "tub/.", "tub/..", "tub/../", "none/"] {
        assert_eq!(jail.files.as_c().remove(path.as_bytes()), -1, "{path}");
    }
    jail.files.remove(b"tub//").unwrap();
    assert!(jail.inside("a") && !jail.inside("tub"));
}

#[cfg(unix)]
#[test]
fn a_link_to_a_directory_is_no_directory_to_remove() {
    let jail = Jail::new(Access::ReadWrite);
    fs::create_dir(jail.scratch.path().join("in/empty")).unwrap();
    jail.link("empty", "link");
    assert_eq!(jail.files.as_c().remove(b"link/"), -1);
    assert!(jail.inside("link") && jail.inside("empty"));
    jail.files.remove(b"link").unwrap();
    assert!(!jail.inside("link") && jail.inside("empty"));
}

#[test]
fn read_only_means_that_nothing_changes() {
    let jail = Jail::new(Access::ReadOnly);
    assert_eq!(jail.read("a").unwrap(), b"in/a");
    for mode in ["w", "a", "r+", "w+", "a+", "wx", "rb+"] {
        let result = jail.files.open(b"a", mode.as_bytes());
        assert!(matches!(result, Err(FileError::Denied(Denial::ReadOnly))), "{mode}");
    }
    assert!(matches!(jail.files.remove(b"a"), Err(FileError::Denied(Denial::ReadOnly))));
    assert!(matches!(jail.files.rename(b"a", b"b"), Err(FileError::Denied(Denial::ReadOnly))));
    assert_eq!(jail.files.stats().denials, Denials { read_only: 9, ..Denials::default() });
    jail.assert_untouched();
}

#[test]
fn everything_is_everything_within_its_access() {
    let scratch = Scratch::new();
    scratch.put("a", b"a");
    let path = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned().into_bytes();
    let reader = FileTable::builder().policy(FilePolicy::everything(Access::ReadOnly)).build();
    assert_ne!(reader.as_c().fopen(&path("a"), b"r"), 0);
    assert_eq!(reader.as_c().fopen(&path("b"), b"w"), 0);
    assert_eq!(reader.as_c().remove(&path("a")), -1);
    let writer = FileTable::builder().policy(FilePolicy::everything(Access::ReadWrite)).build();
    assert_ne!(writer.as_c().fopen(&path("b"), b"w"), 0);
    assert_eq!(writer.as_c().rename(&path("b"), &path("c")), 0);
    assert_eq!(writer.as_c().remove(&path("c")), 0);
    assert_eq!(scratch.get("a"), b"a");
}

#[test]
fn paths_that_cannot_be_are_refused() {
    for policy in [
        FilePolicy::everything(Access::ReadWrite),
        FilePolicy::directory(std::env::temp_dir(), Access::ReadWrite).unwrap(),
    ] {
        let files = FileTable::builder().policy(policy).build();
        for (path, fault) in [
            (Vec::new(), PathFault::Empty),
            (vec![b'a'; PATH_LIMIT], PathFault::TooLong),
            (vec![b'a'; 1 << 20], PathFault::TooLong),
            (b"a\0b".to_vec(), PathFault::Nul),
        ] {
            let refused = |result| matches!(result, Err(FileError::BadPath(f)) if f == fault);
            assert!(refused(files.open(&path, b"w").map(|_| ())), "{fault}");
            assert!(refused(files.remove(&path)), "{fault}");
            assert!(refused(files.rename(&path, b"x")), "{fault}");
            assert!(refused(files.rename(b"x", &path)), "{fault}");
        }
        // Short enough, and too long for one name: the system says so.
        assert_eq!(files.as_c().fopen(&[b'a'; PATH_LIMIT - 1], b"w"), 0);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn names_need_not_be_text() {
    let jail = Jail::new(Access::ReadWrite);
    let file = jail.files.open(b"\xff\xfe\n", b"wx").unwrap();
    jail.files.close(file).unwrap();
    jail.files.rename(b"\xff\xfe\n", b"\x80").unwrap();
    jail.files.remove(b"\x80").unwrap();
}

#[cfg(unix)]
#[test]
fn a_directory_can_be_opened_for_reading_and_reading_it_is_an_error() {
    let jail = Jail::new(Access::ReadWrite);
    for path in ["sub", "sub/", "."] {
        let c = jail.files.as_c();
        let word = c.fopen(path.as_bytes(), b"r");
        assert_ne!(word, 0, "{path}");
        assert_eq!((c.fread(word, 5, 5), c.feof(word), c.ferror(word)), (Vec::new(), 0, 1));
        assert_eq!((c.fgets(word, 5, 5), c.fclose(word)), (None, 0));
        for mode in ["w", "a", "r+", "w+", "a+", "wx"] {
            assert_eq!(c.fopen(path.as_bytes(), mode.as_bytes()), 0, "{path} {mode}");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_fifo_in_the_directory_is_refused_at_once() {
    let jail = Jail::new(Access::ReadWrite);
    let fifo = jail.scratch.path().join("in/fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    jail.link("fifo", "link");
    let (done, wait) = channel();
    let files = jail.files.clone();
    std::thread::spawn(move || {
        for (path, mode) in [("fifo", "r"), ("fifo", "w"), ("fifo", "r+"), ("link", "r")] {
            done.send(files.open(path.as_bytes(), mode.as_bytes())).unwrap();
        }
    });
    for _ in 0..4 {
        let result = wait.recv_timeout(Duration::from_secs(20)).expect("no waiting");
        assert!(matches!(result, Err(FileError::Denied(Denial::SpecialFile))), "{result:?}");
    }
    assert_eq!(jail.files.stats().denials, Denials { special_file: 4, ..Denials::default() });
    jail.files.remove(b"fifo").unwrap();
}

/// Without the look before opening: what a file that is exchanged meanwhile would meet.
#[cfg(target_os = "linux")]
#[test]
fn opening_a_fifo_does_not_wait() {
    let scratch = Scratch::new();
    let fifo = scratch.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let dir = Dir::open_ambient_dir(scratch.path(), cap_std::ambient_authority()).unwrap();
    let (done, wait) = channel();
    std::thread::spawn(move || {
        let mut options = cap_std::fs::OpenOptions::new();
        options.read(true);
        never_wait(&mut options);
        done.send(dir.open_with("fifo", &options).is_ok())
    });
    assert!(wait.recv_timeout(Duration::from_secs(20)).expect("no waiting"));
}

#[test]
fn a_directory_that_is_not_there_cannot_be_a_policy() {
    let scratch = Scratch::new();
    scratch.put("file", b"");
    for name in ["none", "file"] {
        assert!(FilePolicy::directory(scratch.path().join(name), Access::ReadOnly).is_err());
    }
}
