//! `printf` prints the same bytes as the C library of this machine, for generated formats and
//! arguments. Without a C compiler the test fails: `cc` is needed.
#![cfg(all(feature = "std", target_os = "linux", target_env = "gnu", not(hostcall_loom)))]

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use fastrand::Rng;
use hostcall::libc::printf::{ArgumentLayout, Format};

const CASES: usize = 8000;
const SEED: u64 = 2026_1201;

/// One directive with its arguments.
#[derive(Clone, Debug)]
struct Case {
    format: String,
    kind: char,
    stars: Vec<i32>,
    bits: u64,
    string: Vec<u8>,
}

fn pick<'a>(rng: &mut Rng, from: &[&'a str]) -> &'a str {
    from[rng.usize(..from.len())]
}

fn number(rng: &mut Rng) -> f64 {
    match rng.u32(..11) {
        0 => f64::from_bits(rng.u64(..)),
        1 => f64::from(rng.i32(-20..20)) / 2.0,
        2 => f64::from(rng.i32(-4000..4000)) / 8.0,
        3 => f64::from(rng.i32(-99999..99999)) / 1000.0,
        4 => [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -f64::NAN][rng.usize(..6)],
        5 => f64::from_bits(rng.u64(..1 << 52)),
        6 => 10f64.powi(rng.i32(-320..308)),
        7 => f64::from_bits(f64::to_bits(1.0) | (rng.u64(..256) << 44)),
        8 => 9.999_999_5 * 10f64.powi(rng.i32(-8..8)),
        // Ties of few significant digits: exact, and halves of some decimal place.
        9 => (rng.u32(..2000) as f64 + 0.5) * 10f64.powi(rng.i32(0..10)),
        _ => rng.f64() * 1000.0,
    }
}

/// Whether rounding to so many digits turns a number that `%g` writes in full into one with an exponent:
/// there, the GNU C library's `%#g` prints `1.e+06` for C's `1.00000e+06`.
fn carries_into_an_exponent(value: f64, digits: usize) -> bool {
    let exponent = |text: String| text.split_once('e').unwrap().1.parse::<i32>().unwrap();
    let behind = digits - 1;
    value.is_finite()
        && exponent(format!("{value:e}")) == behind as i32
        && exponent(format!("{value:.behind$e}")) == digits as i32
}

/// A number half-way between two of so many hexadecimal digits behind the point, fewer than 13.
fn hexadecimal_tie(rng: &mut Rng, digits: i32) -> f64 {
    let half = 1 << (51 - 4 * digits);
    f64::from_bits(f64::to_bits(1.0) | half | (rng.u64(..1 << 52) & !(2 * half - 1)))
}

fn integer(rng: &mut Rng) -> u64 {
    match rng.u32(..4) {
        0 => rng.u64(..),
        1 => rng.u64(..20),
        2 => [0, 1, u64::MAX, i64::MIN as u64, i64::MAX as u64, 0x8000_0000, 0x7fff_ffff, 255]
            [rng.usize(..8)],
        _ => rng.u64(..) >> rng.u32(..64),
    }
}

fn case(rng: &mut Rng) -> Case {
    let conversion = pick(
        rng,
        &[
            "d", "i", "u", "o", "x", "X", "b", "B", "c", "s", "p", "f", "F", "e", "E", "g", "G",
            "a", "A", "f", "e", "g", "a", "lc", "%",
        ],
    );
    let (kind, length) = match conversion {
        "c" | "lc" => ('i', ""),
        "s" => (if rng.u32(..8) == 0 { 'n' } else { 's' }, ""),
        "p" => ('p', ""),
        "%" => ('%', ""),
        "d" | "i" | "u" | "o" | "x" | "X" | "b" | "B" => {
            let length = pick(rng, &["", "h", "hh", "l", "ll", "j", "z", "t", "q", "L"]);
            (if ["", "h", "hh"].contains(&length) { 'i' } else { 'l' }, length)
        }
        _ => ('d', pick(rng, &["", "l"])),
    };
    let mut format = "%".to_owned();
    // Also where C leaves open what a flag does: the library ignores it, and so do we.
    for flag in "-+ 0#'".chars() {
        if rng.u32(..4) == 0 {
            format.push(flag);
        }
    }
    let mut stars = Vec::new();
    match rng.u32(..4) {
        0 => write!(format, "{}", rng.u32(1..30)).unwrap(),
        1 => {
            format.push('*');
            stars.push(rng.i32(-30..30));
        }
        _ => {}
    }
    let mut precision = -1;
    match rng.u32(..4) {
        0 => {
            precision = if rng.u32(..20) == 0 { rng.i32(300..1200) } else { rng.i32(0..25) };
            write!(format, ".{precision}").unwrap();
        }
        1 => {
            precision = rng.i32(-5..25);
            format.push_str(".*");
            stars.push(precision);
        }
        2 if rng.bool() => {
            precision = 0;
            format.push('.');
        }
        _ => {}
    }
    format.push_str(length);
    format.push_str(conversion);
    let bits = match (kind, conversion) {
        (_, "c") => u64::from(rng.u8(..)),
        (_, "lc") => u64::from(rng.u8(..128)),
        (_, "a" | "A") if (0..13).contains(&precision) && rng.bool() => {
            hexadecimal_tie(rng, precision).to_bits()
        }
        ('d', _) => number(rng).to_bits(),
        ('n', _) => 0,
        _ => integer(rng),
    };
    if conversion.eq_ignore_ascii_case("g") {
        let digits = usize::try_from(precision).unwrap_or(6).max(1);
        if carries_into_an_exponent(f64::from_bits(bits), digits) {
            format = format.replace('#', "");
        }
    }
    let string = (0..rng.usize(..40)).map(|_| rng.u8(1..=255)).collect();
    Case { format, kind, stars, bits, string }
}

/// Compiles the driver, feeds it the cases, returns what C printed for each.
fn by_c(cases: &[Case]) -> Vec<Vec<u8>> {
    let driver = Path::new(env!("CARGO_TARGET_TMPDIR")).join("printf_driver");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/printf_driver.c");
    let compiled = Command::new("cc").args(["-w", "-O1", "-o"]).arg(&driver).arg(source).status();
    assert!(compiled.expect("cc is installed").success());
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let lines: String = cases.iter().fold(String::new(), |mut lines, case| {
        let value = match case.kind {
            's' => format!("x{}", hex(&case.string)),
            _ => format!("{:x}", case.bits),
        };
        let [first, second] = [0, 1].map(|star| case.stars.get(star).copied().unwrap_or(0));
        let (format, stars) = (hex(case.format.as_bytes()), case.stars.len());
        writeln!(lines, "{format} {} {stars} {first} {second} {value}", case.kind).unwrap();
        lines
    });
    let mut child = Command::new(driver)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the driver was just compiled");
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(lines.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let unhex = |text: &str| -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
            .collect()
    };
    let output = String::from_utf8(output.stdout).unwrap();
    output.lines().map(|line| unhex(line.split_once(' ').unwrap().1)).collect()
}

/// The argument block of several directives in one format.
fn block(cases: &[Case], layout: ArgumentLayout) -> Vec<u8> {
    let mut block = Vec::new();
    let mut push = |bytes: &[u8]| {
        if layout == ArgumentLayout::Aligned {
            block.resize(block.len().next_multiple_of(bytes.len()), 0xee);
        }
        block.extend_from_slice(bytes);
    };
    for case in cases {
        case.stars.iter().for_each(|star| push(&star.to_le_bytes()));
        match case.kind {
            'i' => push(&(case.bits as u32).to_le_bytes()),
            's' => push(&0x1000u64.to_le_bytes()),
            '%' => {}
            _ => push(&case.bits.to_le_bytes()),
        }
    }
    block
}

#[test]
fn generated_formats_print_the_bytes_of_the_c_library() {
    let mut rng = Rng::with_seed(SEED);
    let cases: Vec<_> = (0..CASES).map(|_| case(&mut rng)).collect();
    let expected = by_c(&cases);
    assert_eq!(expected.len(), CASES, "the driver answered every case");
    let mut start = 0;
    while start < CASES {
        // Some alone, some several in one format with text between.
        let end = (start + rng.usize(1..5)).min(CASES);
        let layout = if rng.bool() { ArgumentLayout::Aligned } else { ArgumentLayout::Packed };
        let group = &cases[start..end];
        let mut format: String =
            group.iter().map(|case| case.format.as_str()).collect::<Vec<_>>().join("; %% ");
        format.push('\n');
        let mut wanted = expected[start..end].join(&b"; % "[..]);
        wanted.push(b'\n');
        let parsed = Format::parse(format.as_bytes()).unwrap();
        let arguments = block(group, layout);
        assert_eq!(parsed.argument_bytes(layout), arguments.len(), "{format:?} {layout:?}");
        let strings: Vec<_> =
            group.iter().filter(|case| case.kind == 's').map(|case| case.string.clone()).collect();
        assert_eq!(parsed.strings(layout, &arguments).len(), strings.len());
        let mut printed = Vec::new();
        parsed.render(layout, &arguments, &strings, &mut printed).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&printed),
            String::from_utf8_lossy(&wanted),
            "seed {SEED}, cases {start}..{end}: {group:?}"
        );
        assert_eq!(printed, wanted, "seed {SEED}, cases {start}..{end}: {group:?}");
        start = end;
    }
}
