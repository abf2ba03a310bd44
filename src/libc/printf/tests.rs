//! Literal expectations; `tests/printf_against_c.rs` compares with the real C library.

use super::*;

/// A block that `Aligned` and `Packed` lay out alike: words of eight bytes.
fn print(format: &str, arguments: &[u64], strings: &[&str]) -> String {
    let block: Vec<u8> = arguments.iter().flat_map(|word| word.to_le_bytes()).collect();
    let strings: Vec<_> = strings.iter().map(|string| string.as_bytes().to_vec()).collect();
    let mut out = Vec::new();
    let format = Format::parse(format.as_bytes()).unwrap();
    format.render(ArgumentLayout::Aligned, &block, &strings, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn float(format: &str, value: f64) -> String {
    print(format, &[value.to_bits()], &[])
}

#[test]
fn text_without_directives_is_itself() {
    assert_eq!(print("", &[], &[]), "");
    assert_eq!(print("100%% of %%d\n", &[], &[]), "100% of %d\n");
}

#[test]
fn integers() {
    assert_eq!(print("%ld|%+ld|% ld|%5ld|%-5ld|%05ld", &[7; 6], &[]), "7|+7| 7|    7|7    |00007");
    assert_eq!(print("%ld", &[i64::MIN as u64], &[]), "-9223372036854775808");
    assert_eq!(print("%hhd", &[0x1ff], &[]), "-1");
    assert_eq!(print("%hd", &[0x1_8000], &[]), "-32768");
    assert_eq!(
        print("%.3ld|%8.3ld|%-8.3ld|%08.3ld", &[5; 4], &[]),
        "005|     005|005     |     005"
    );
    assert_eq!(print("[%.0ld]", &[0], &[]), "[]");
    assert_eq!(print("%#lo|%#lx|%#lX|%#lb|%#lB", &[10; 5], &[]), "012|0xa|0XA|0b1010|0B1010");
    assert_eq!(print("%#lo|%#lx|%#lb|%#.0lo", &[0; 4], &[]), "0|0|0|0");
    assert_eq!(print("%#08lx|%#.4lo", &[255; 2], &[]), "0x0000ff|0377");
}

#[test]
fn exact_widths_are_the_types_of_that_size() {
    assert_eq!(print("%w8d", &[0x1ff], &[]), "-1");
    assert_eq!(print("%w64d", &[1 << 40], &[]), "1099511627776");
    assert_eq!(print("%wf32u", &[1 << 40], &[]), "1099511627776");
    assert_eq!(print("%w7d", &[], &[]), "%w7d");
}

#[test]
fn floats() {
    assert_eq!(float("%f", 2.5), "2.500000");
    assert_eq!([0.5, 1.5, 2.5].map(|x| float("%.0f", x)).concat(), "022");
    assert_eq!(float("%e", 12345.678), "1.234568e+04");
    assert_eq!(float("%.2Lf", 1.125), "1.12", "a long double has 8 bytes on devices");
    assert_eq!(float("%.0e|", 25000.0), "2e+04|");
    assert_eq!(float("%g", 0.0001), "0.0001");
    assert_eq!(float("%g", 0.00001), "1e-05");
    assert_eq!(float("%#g", 1.0), "1.00000");
    assert_eq!(float("%G", 1e100), "1E+100");
    assert_eq!(float("%a", 1.0), "0x1p+0");
    assert_eq!(float("%.1a", 1.96875), "0x2.0p+0");
    assert_eq!(float("%A", 0.1), "0X1.999999999999AP-4");
    assert_eq!(float("%010f|", -0.0), "-00.000000|");
    assert_eq!(float("%06f", f64::INFINITY), "   inf");
    assert_eq!(float("%-6F|", -f64::NAN), "-NAN  |");
    assert_eq!(float("%.500f", 0.1).len(), 502);
    assert_eq!(float("%.2000f", 5e-324).trim_end_matches('0').len(), 2 + 1074);
}

#[test]
fn strings_come_in_order_and_null_ones_are_not_asked_for() {
    let format = Format::parse(b"%s %s %s").unwrap();
    let block = [1u64, 0, 3].map(u64::to_le_bytes).concat();
    assert_eq!(format.strings(ArgumentLayout::Packed, &block), [1, 3]);
    assert_eq!(print("%s %s %s", &[1, 0, 3], &["a", "c"]), "a (null) c");
    assert_eq!(print("%.2s|%5s|%-5s|", &[1, 1, 1], &["abc", "de", "f"]), "ab|   de|f    |");
    assert_eq!(print("%.5s|%.6s", &[0, 0], &[]), "|(null)");
    assert_eq!(print("%10s and more %ld", &[1, 5], &["x"]), "         x and more 5");
}

#[test]
fn characters_and_pointers() {
    assert_eq!(print("%c%3c", &[0x42_0000_0041], &[]), "A  B");
    assert_eq!(print("a%cb", &[0], &[]), "a\0b");
    assert_eq!(print("%p %p", &[0, 0xabc], &[]), "(nil) 0xabc");
    assert_eq!(print("%10p|%-10p|", &[0, 16], &[]), "     (nil)|0x10      |");
}

#[test]
fn stars_take_arguments() {
    let format = Format::parse(b"%*.*f|").unwrap();
    assert_eq!(format.argument_bytes(ArgumentLayout::Packed), 16);
    let print = |width: i32, precision: i32| {
        let mut block = [width.to_le_bytes(), precision.to_le_bytes()].concat();
        block.extend(1.25f64.to_le_bytes());
        let mut out = Vec::new();
        format.render(ArgumentLayout::Packed, &block, &[], &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert_eq!(print(6, 1), "   1.2|");
    assert_eq!(print(-6, 1), "1.2   |");
    assert_eq!(print(0, -1), "1.250000|");
}

#[test]
fn alignment_pads_between_arguments_and_packing_does_not() {
    let format = Format::parse(b"%c%f%d").unwrap();
    assert_eq!(format.argument_bytes(ArgumentLayout::Aligned), 20);
    assert_eq!(format.argument_bytes(ArgumentLayout::Packed), 16);
}

#[test]
fn what_is_unknown_is_printed_as_it_stands() {
    assert_eq!(print("%y %-5.2! %m", &[], &[]), "%y %-5.2! %m");
    assert_eq!(print("%ls %ld", &[1, 2], &[]), "%ls 2");
    assert_eq!(print("%n%ld", &[1, 2], &[]), "2");
}

#[test]
fn a_format_that_ends_in_a_directive_is_an_error() {
    assert_eq!(Format::parse(b"ab%").unwrap_err(), FormatError::Incomplete(2));
    assert_eq!(Format::parse(b"%-5.3l").unwrap_err(), FormatError::Incomplete(0));
}

#[test]
fn exhausted_blocks_are_all_ones() {
    assert_eq!(print("%d %u %lx", &[], &[]), "-1 4294967295 ffffffffffffffff");
    assert_eq!(print("%s", &[], &[]), "(null)");
}

#[test]
fn huge_fields_are_refused_and_nothing_is_printed() {
    let mut out = b"before".to_vec();
    let mut render = |format: &str| {
        let format = Format::parse(format.as_bytes()).unwrap();
        format.render(ArgumentLayout::Packed, &i32::MAX.to_le_bytes(), &[], &mut out)
    };
    assert_eq!(render("x%2147483647d"), Err(RenderError::FieldTooLong(2_147_483_647)));
    assert_eq!(render("x%*d"), Err(RenderError::FieldTooLong(2_147_483_647)));
    assert_eq!(render("x%.99999999999999999999f"), Err(RenderError::FieldTooLong(u64::MAX)));
    assert_eq!(render(&"%1048576d".repeat(65)), Err(RenderError::OutputTooLong));
    assert_eq!(out, b"before");
}

#[test]
fn nothing_that_a_device_sends_panics() {
    let mut rng = fastrand::Rng::with_seed(1);
    let alphabet = b"%%%%%diouxXbBcspnfFeEgGaAmlhjztLqw0123456789.*-+ #' y\0";
    for _ in 0..20_000 {
        let format: Vec<u8> =
            (0..rng.usize(..20)).map(|_| alphabet[rng.usize(..alphabet.len())]).collect();
        let Ok(format) = Format::parse(&format) else { continue };
        let block: Vec<u8> = (0..rng.usize(..64)).map(|_| rng.u8(..)).collect();
        for layout in [ArgumentLayout::Aligned, ArgumentLayout::Packed] {
            let strings: Vec<_> = format.strings(layout, &block).iter().map(|_| vec![7]).collect();
            let _ = format.render(layout, &block, &strings[..strings.len() / 2], &mut Vec::new());
        }
    }
}
