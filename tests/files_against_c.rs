//! Random sequences of stdio operations, done by the C library and by a `FileTable`: every result
//! and every file that is left must be the same.
//!
//! Only sequences whose results C and POSIX define (or on which glibc is reliable) are made; what
//! is left out is said where it is left out. `HOSTCALL_STDIO_SEED` and `HOSTCALL_STDIO_SEQUENCES`
//! choose others.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use hostcall::libc::files::{Access, CFiles, FilePolicy, FileTable, StreamRef};

const SEQUENCES: u64 = 2200;
const OPERATIONS: u64 = 45;
const STREAMS: usize = 6;
/// No single read or line is longer, in this test.
const LIMIT: usize = 1 << 20;

const PATHS: [&str; 12] =
    ["a", "b", "c", "d", "s/a", "s/b", "s", "s/", "a/", "./a", "s/../b", "none/a"];
const MODES: [&str; 22] = [
    "r", "rb", "r+", "rb+", "r+b", "re", "r+e", "w", "wb", "w+", "w+b", "wx", "w+x", "wxe", "a",
    "ab", "a+", "a+b", "ab+", "ax", "q", "+r",
];

#[test]
fn every_result_is_that_of_the_c_library() {
    let first = number_from("HOSTCALL_STDIO_SEED", 1);
    let sequences = number_from("HOSTCALL_STDIO_SEQUENCES", SEQUENCES);
    let root = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("files-against-c-{}", std::process::id()));
    fs::create_dir_all(&root).unwrap();

    let runs: Vec<_> = (first..first + sequences)
        .map(|seed| Run::new(seed, &root.join(format!("ours-{seed}"))))
        .collect();
    let theirs = |run: &Run| root.join(format!("theirs-{}", run.seed));

    let mut script = String::new();
    for run in &runs {
        prepare(&theirs(run), &mut Random::new(run.seed));
        writeln!(script, "chdir {}", theirs(run).display()).unwrap();
        for step in &run.steps {
            script.push_str(&step.operation);
            script.push('\n');
        }
    }
    let answers = drive(&root, script);
    let mut answers = answers.lines();
    let mut compared = 0;
    for run in &runs {
        assert_eq!(answers.next(), Some("0"), "the driver changes its directory");
        for (at, step) in run.steps.iter().enumerate() {
            // Nothing, if the driver was killed: libraries have faults as well.
            let answer = answers.next().unwrap_or("no answer");
            assert!(answer == step.result, "{}", run.report(at, answer));
            compared += 1;
        }
        let (ours, theirs) = (contents(&run.directory), contents(&theirs(run)));
        assert!(ours == theirs, "the files differ\n{}", run.report(run.steps.len(), ""));
    }
    assert_eq!(answers.next(), None);
    println!("{sequences} sequences from seed {first}, {compared} results compared");
    fs::remove_dir_all(&root).unwrap();
}

/// One sequence, as done by the table.
struct Run {
    seed: u64,
    directory: PathBuf,
    steps: Vec<Step>,
}

/// An operation as the driver understands it, and what the table answered.
struct Step {
    operation: String,
    result: String,
}

impl Run {
    fn new(seed: u64, directory: &Path) -> Self {
        let mut random = Random::new(seed);
        prepare(directory, &mut random);
        // With the feature, half of the sequences are confined to their directory. The others use its
        // absolute path.
        let confined = cfg!(feature = "sandbox") && seed.is_multiple_of(2);
        let everything = FilePolicy::everything(Access::ReadWrite);
        #[cfg(feature = "sandbox")]
        let directories = FilePolicy::directory(directory, Access::ReadWrite).unwrap();
        #[cfg(not(feature = "sandbox"))]
        let directories = FilePolicy::denied();
        let policy = if confined { directories } else { everything };
        let files = FileTable::builder().policy(policy).build();
        let mut generator = Generator {
            random,
            c: files.as_c(),
            directory,
            prefix: if confined { String::new() } else { format!("{}/", directory.display()) },
            streams: [const { None }; STREAMS],
            steps: Vec::new(),
        };
        for _ in 0..OPERATIONS {
            generator.step();
        }
        for number in 0..STREAMS {
            generator.close(number);
        }
        let steps = generator.steps;
        Run { seed, directory: directory.to_owned(), steps }
    }

    /// What happened up to the mismatch.
    fn report(&self, at: usize, answer: &str) -> String {
        let mut text = format!("HOSTCALL_STDIO_SEED={} HOSTCALL_STDIO_SEQUENCES=1\n", self.seed);
        for (number, step) in self.steps.iter().enumerate().take(at + 1) {
            let short = |text: &str| text.chars().take(100).collect::<String>();
            let _ = write!(text, "{} -> {}", short(&step.operation), short(&step.result));
            text += if number == at { " and in C " } else { "\n" };
        }
        text + &answer.chars().take(100).collect::<String>()
    }
}

struct Generator<'a> {
    random: Random,
    c: CFiles<'a>,
    directory: &'a Path,
    prefix: String,
    streams: [Option<Open>; STREAMS],
    steps: Vec<Step>,
}

/// What the generator has to know about an open stream to stay within C.
#[expect(
    clippy::struct_excessive_bools,
    reason = "four facts that have nothing to do with each other"
)]
struct Open {
    word: u64,
    inode: u64,
    reads: bool,
    writes: bool,
    directory: bool,
    last: Last,
    pushed: u32,
    /// Whether anything was pushed back since the last seek.
    pushed_once: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Last {
    Neither,
    Read,
    ReadToEnd,
    Write,
    WriteAndFlush,
}

impl Generator<'_> {
    fn step(&mut self) {
        let number = self.random.below(STREAMS as u64) as usize;
        match self.random.below(100) {
            0..2 => self.remove(),
            2..5 => self.rename(),
            5..7 => self.flush_all(),
            _ if self.streams[number].is_none() => self.open(number),
            7..11 => self.close(number),
            11..30 => self.read(number),
            30..42 => self.line(number),
            42..66 => self.write(number),
            66..78 => self.seek(number),
            78..86 => self.tell(number),
            86..91 => self.push_back(number),
            91..95 => self.flush(number),
            _ => self.indicators(number),
        }
    }

    fn path(&mut self) -> &'static str {
        PATHS[self.random.below(PATHS.len() as u64) as usize]
    }

    fn full(&self, path: &str) -> Vec<u8> {
        format!("{}{path}", self.prefix).into_bytes()
    }

    fn record(&mut self, operation: String, result: impl ToString) {
        self.steps.push(Step { operation, result: result.to_string() });
    }

    fn stream(&mut self, number: usize) -> &mut Open {
        self.streams[number].as_mut().expect("an open stream")
    }

    fn open(&mut self, number: usize) {
        let path = self.path();
        let mode = MODES[self.random.below(MODES.len() as u64) as usize];
        // When two streams see each other's writes is left to the buffers, so a file has either one
        // writer or any number of readers.
        let writes = !mode.starts_with('r') || mode.contains('+');
        if let Ok(found) = fs::metadata(self.directory.join(path)) {
            let same = |open: &Open| open.inode == found.ino() && (writes || open.writes);
            if self.streams.iter().flatten().any(same) {
                return;
            }
        }
        let word = self.c.fopen(&self.full(path), mode.as_bytes());
        self.record(format!("open {number} {path} {mode}"), u8::from(word != 0));
        if word == 0 {
            return;
        }
        let found = fs::metadata(self.directory.join(path)).unwrap();
        self.streams[number] = Some(Open {
            word,
            inode: found.ino(),
            reads: mode.starts_with('r') || mode.contains('+'),
            writes,
            directory: found.is_dir(),
            last: Last::Neither,
            pushed: 0,
            pushed_once: false,
        });
    }

    fn close(&mut self, number: usize) {
        if let Some(open) = self.streams[number].take() {
            let result = self.c.fclose(open.word);
            self.record(format!("close {number}"), result);
        }
    }

    /// C wants a flush or a seek between writing and reading.
    fn before_reading(&mut self, number: usize) {
        if self.stream(number).last == Last::Write {
            match self.random.below(2) {
                0 => self.flush(number),
                _ => self.seek_to(number, 0, 1),
            }
        }
    }

    /// C wants a seek between reading and writing, unless the end was reached.
    fn before_writing(&mut self, number: usize) {
        let open = self.stream(number);
        let at_end = open.last == Last::ReadToEnd && open.pushed == 0;
        if open.writes && (open.pushed > 0 || open.last == Last::Read && !at_end) {
            self.seek_to(number, 0, 1);
        }
    }

    fn read(&mut self, number: usize) {
        self.before_reading(number);
        let count = match self.random.below(20) {
            0 => 0,
            // glibc reads past its buffer here, and forgets what is pending in a write-only stream.
            1 if self.stream(number).reads => 4000 + self.random.below(9000),
            2..8 => self.random.below(600),
            _ => self.random.below(20),
        };
        let word = self.stream(number).word;
        let looks = count > 0 && self.c.feof(word) == 0;
        let bytes = self.c.fread(word, count, LIMIT);
        self.record(format!("read {number} {count}"), hex(&bytes));
        if looks {
            self.after_reading(number, bytes.len());
        }
    }

    fn line(&mut self, number: usize) {
        self.before_reading(number);
        let size = match self.random.below(20) {
            0 => 0,
            1 => -(self.random.below(5) as i32),
            2 => 1,
            3 => 2,
            4 => 5000,
            _ => self.random.below(80) as i32,
        };
        let word = self.stream(number).word;
        let looks = size > 1 && self.c.feof(word) == 0;
        let line = self.c.fgets(word, size, LIMIT);
        let length = line.as_ref().map_or(0, |line| line.len() - 1);
        let result = match &line {
            Some(line) => hex(line.strip_suffix(&[0]).expect("a terminating zero")),
            None => "null".to_owned(),
        };
        self.record(format!("gets {number} {size}"), result);
        if looks {
            self.after_reading(number, length);
        }
    }

    /// Not after reading nothing, or at the known end: the stream did not change its direction.
    fn after_reading(&mut self, number: usize, read: usize) {
        let at_end = self.c.feof(self.stream(number).word) == 1;
        let open = self.stream(number);
        if open.reads {
            open.pushed = open.pushed.saturating_sub(read as u32);
            open.last = if at_end { Last::ReadToEnd } else { Last::Read };
        }
    }

    fn write(&mut self, number: usize) {
        self.before_writing(number);
        let most = match self.random.below(20) {
            0 => 1,
            1 => 9000,
            2..6 => 700,
            _ => 30,
        };
        let bytes = self.random.bytes(most);
        let word = self.stream(number).word;
        let count = self.c.fwrite(StreamRef::from_untagged(word), &bytes);
        self.record(format!("write {number} {}", hex(&bytes)), count);
        let open = self.stream(number);
        if open.writes && !bytes.is_empty() {
            open.last = Last::Write;
        }
    }

    fn seek(&mut self, number: usize) {
        let whence = match self.random.below(20) {
            0 => 7,
            1 => -1,
            other => (other % 3) as i32,
        };
        let most = if self.random.below(4) == 0 { 9000 } else { 100 };
        let mut offset = self.random.below(most) as i64;
        if whence != 0 && self.random.below(2) == 0 || self.random.below(20) == 0 {
            offset = -offset;
        }
        let pushed = self.stream(number).pushed;
        // A seek that fails forgets pushed-back characters in glibc; C says nothing about it.
        if pushed > 0 && (offset < i64::from(pushed) || !(0..=2).contains(&whence)) {
            return;
        }
        self.seek_to(number, offset, whence);
    }

    fn seek_to(&mut self, number: usize, offset: i64, whence: i32) {
        let open = self.stream(number);
        // What offsets in directories mean is the file system's affair.
        if open.directory {
            return;
        }
        // Before the first byte there is nothing to go back to, and C gives no meaning to it.
        let (word, pushed, pushed_once) = (open.word, open.pushed, open.pushed_once);
        let before_start = pushed > 0 && self.c.ftell(word) < 0;
        let (offset, whence) = if before_start {
            (offset.abs(), 0)
        } else if pushed_once && whence == 1 {
            // glibc lands elsewhere (2.36: "r+" of a file longer than its buffer, a seek near the
            // end, read, ungetc, fseek(0, SEEK_CUR)), although its ftell knows better.
            (self.c.ftell(word) + offset, 0)
        } else {
            (offset, whence)
        };
        let result = self.c.fseek(word, offset, whence);
        self.record(format!("seek {number} {offset} {whence}"), result);
        if result == 0 {
            let open = self.stream(number);
            (open.last, open.pushed, open.pushed_once) = (Last::Neither, 0, false);
        }
    }

    fn tell(&mut self, number: usize) {
        let open = self.stream(number);
        if open.directory {
            return;
        }
        let (word, pushed) = (open.word, open.pushed);
        let position = self.c.ftell(word);
        // C gives no meaning to the position before the first byte.
        if position >= 0 || pushed == 0 {
            self.record(format!("tell {number}"), position);
        }
    }

    fn push_back(&mut self, number: usize) {
        let open = self.stream(number);
        // C has `ungetc` for input streams, and promises one character.
        if !open.reads || open.directory || open.pushed > 0 {
            return;
        }
        // glibc frees the wrong pointer if it is still in its writing mode, which a flush does not end.
        if matches!(self.stream(number).last, Last::Write | Last::WriteAndFlush) {
            self.seek_to(number, 0, 1);
        }
        let character = match self.random.below(10) {
            0 => -1,
            1 => 255,
            2 => 10,
            _ => self.random.below(128) as i32,
        };
        let word = self.stream(number).word;
        let result = self.c.ungetc(character, word);
        self.record(format!("unget {number} {character}"), result);
        if result != -1 {
            let open = self.stream(number);
            (open.last, open.pushed, open.pushed_once) = (Last::Read, open.pushed + 1, true);
        }
    }

    fn flush(&mut self, number: usize) {
        let open = self.stream(number);
        // glibc moves the file wrongly if something is pushed back (its bug 5994).
        if open.pushed > 0 {
            return;
        }
        let word = open.word;
        if open.last == Last::Write {
            open.last = Last::WriteAndFlush;
        }
        let result = self.c.fflush(word);
        self.record(format!("flush {number}"), result);
    }

    fn flush_all(&mut self) {
        // Whether input streams are meant as well, and lose what is pushed back, is left open.
        if self.streams.iter().flatten().any(|open| open.pushed > 0) {
            return;
        }
        let result = self.c.fflush(0);
        self.record("flushall".to_owned(), result);
        for open in self.streams.iter_mut().flatten() {
            if open.last == Last::Write {
                open.last = Last::WriteAndFlush;
            }
        }
    }

    fn indicators(&mut self, number: usize) {
        let word = self.stream(number).word;
        match self.random.below(5) {
            0 | 1 => self.record(format!("eof {number}"), self.c.feof(word)),
            2 | 3 => self.record(format!("error {number}"), self.c.ferror(word)),
            _ => {
                self.c.clearerr(word);
                self.record(format!("clear {number}"), 0);
            }
        }
    }

    fn remove(&mut self) {
        let path = self.path();
        let result = self.c.remove(&self.full(path));
        self.record(format!("remove {path}"), result);
    }

    fn rename(&mut self) {
        let (from, to) = (self.path(), self.path());
        let result = self.c.rename(&self.full(from), &self.full(to));
        self.record(format!("rename {from} {to}"), result);
    }
}

/// Small, and the same everywhere: splitmix64.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// Up to `most` bytes: letters, newlines, zeros, and 0xff, which is `EOF` cut to a byte.
    fn bytes(&mut self, most: u64) -> Vec<u8> {
        let length = self.below(most + 1);
        (0..length)
            .map(|_| match self.below(40) {
                0 => b'\n',
                1 => 0,
                2 => 0xff,
                _ => b'a' + self.below(26) as u8,
            })
            .collect()
    }
}

/// The files that a sequence starts with.
fn prepare(directory: &Path, random: &mut Random) {
    fs::create_dir_all(directory.join("s")).unwrap();
    for (name, most) in [("a", 200), ("b", 12_000), ("s/a", 5)] {
        fs::write(directory.join(name), random.bytes(most)).unwrap();
    }
}

/// All files below a directory, and directories without content.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![directory.to_owned()];
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(directory).unwrap().to_owned();
            if path.is_dir() {
                found.insert(name, None);
                todo.push(path);
            } else {
                found.insert(name, Some(fs::read(&path).unwrap()));
            }
        }
    }
    found
}

/// Compiles the driver and gives it the script.
fn drive(root: &Path, script: String) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/stdio_driver.c");
    let program = root.join("stdio_driver");
    let compiled = Command::new("cc").arg("-O1").arg("-o").arg(&program).arg(source).status();
    assert!(compiled.expect("a C compiler, named cc").success());

    let (orders, answers) = (root.join("script"), root.join("answers"));
    fs::write(&orders, script).unwrap();
    // Not judged by its status: how far the answers go says more.
    Command::new(&program)
        .stdin(Stdio::from(fs::File::open(orders).unwrap()))
        .stdout(Stdio::from(fs::File::create(&answers).unwrap()))
        .status()
        .unwrap();
    fs::read_to_string(answers).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".to_owned();
    }
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn number_from(variable: &str, default: u64) -> u64 {
    env::var(variable).ok().map_or(default, |text| text.parse().expect("a number"))
}
