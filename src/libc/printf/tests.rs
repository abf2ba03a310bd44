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
    assert_eq!(print("%i|%lu|%hhu|%hu", &[u64::MAX; 4], &[]), "-1|18446744073709551615|255|65535");
    assert_eq!(print("%lb|%lB|%lo|%lX", &[0xbe; 4], &[]), "10111110|10111110|276|BE");
    assert_eq!(
        print("%-+ 08ld|%+-8.3ld|%'ld", &[5, 5, 1_234_567], &[]),
        "+5      |+005    |1234567"
    );
    assert_eq!(print("%+.0ld|% .0ld|%+5.0ld|%#.0lx|%05.0ld|", &[0; 5], &[]), "+| |    +||     |");
    assert_eq!(print("%+lu|% lx|%#ld", &[3; 3], &[]), "3|3|3", "flags of other conversions");
}

#[test]
fn arguments_have_the_size_of_their_length_and_conversion() {
    let size = |format: &str| {
        Format::parse(format.as_bytes()).unwrap().argument_bytes(ArgumentLayout::Packed)
    };
    for format in ["%d", "%hhi", "%hu", "%x", "%c", "%lc", "%w8o", "%w16b", "%w32B", "%wf8X"] {
        assert_eq!(size(format), 4, "{format}");
    }
    let words =
        "%ld %lli %ju %zx %tX %qo %Lb %w64d %wf16d %wf32d %wf64d %f %Lf %le %G %a %p %s %ls %n";
    for format in words.split(' ') {
        assert_eq!(size(format), 8, "{format}");
    }
    assert_eq!(["%%", "%5%", "%y", "%m", "%w7d", "%1$d"].map(size), [0; 6]);
    assert_eq!(["%*%", "%*y", "%*.*c", "%-*.*ls"].map(size), [4, 4, 12, 16]);
}

#[test]
fn exact_widths_are_the_types_of_that_size() {
    assert_eq!(print("%w8d", &[0x1ff], &[]), "-1");
    assert_eq!(print("%w64d", &[1 << 40], &[]), "1099511627776");
    assert_eq!(print("%wf32u", &[1 << 40], &[]), "1099511627776");
    assert_eq!(print("%w7d", &[], &[]), "%w7d");
    let same = [("w8", "hh"), ("w16", "h"), ("w32", ""), ("w64", "l"), ("wf8", "hh")];
    let fast = [("wf16", "l"), ("wf32", "ll"), ("wf64", "ll")];
    for (exact, length) in same.into_iter().chain(fast) {
        for (letter, value) in "diuoxXbB".chars().zip([1 << 40, u64::MAX, 0x1_8000_8081].repeat(3))
        {
            let printed = [exact, length]
                .map(|length| print(&format!("%#9.3{length}{letter}"), &[value], &[]));
            assert_eq!(printed[0], printed[1], "%{exact}{letter} {value:#x}");
        }
    }
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
    assert_eq!(float("%E|", 12345.678), "1.234568E+04|");
    assert_eq!(float("%#.0f", 9.5) + &float("%#.0e", 9.5), "10.1.e+01");
    assert_eq!(float("%+08.2Lf|", 3.127), "+0003.13|");
    assert_eq!(float("%-+8.1f|", 3.0), "+3.0    |");
    assert_eq!(float("%.3g", 999.9), "1e+03");
    assert_eq!(float("%#.3g", 999.9), "1.00e+03", "glibc prints 1.e+03");
    assert_eq!(float("%.0g", 0.0) + &float("%#.0g", 0.0), "00.");
    assert_eq!(float("% F", -f64::NAN), "-NAN");
    assert_eq!(float("%+f", f64::NAN), "+nan");
    assert_eq!(float("%0-5f|", f64::INFINITY), "inf  |");
    assert_eq!(float("%010a", f64::NEG_INFINITY), "      -inf");
    assert_eq!(float("%.500f", 0.1).len(), 502);
    assert_eq!(float("%.2000f", 5e-324).trim_end_matches('0').len(), 2 + 1074);
}

#[test]
fn hexadecimal_floats() {
    assert_eq!(float("%a", 0.0), "0x0p+0");
    assert_eq!(float("%.3a", -0.0), "-0x0.000p+0");
    assert_eq!(float("%a", 5e-324), "0x0.0000000000001p-1022");
    assert_eq!(float("%.0a", 5e-324), "0x0p-1022");
    assert_eq!(float("%.3a", 2.225_073_858_507_201e-308), "0x1.000p-1022");
    assert_eq!([1.5, 2.5, 1.7].map(|x| float("%.0a ", x)).concat(), "0x2p+0 0x1p+1 0x2p+0 ");
    assert_eq!([1.03125, 1.09375].map(|x| float("%.1a ", x)).concat(), "0x1.0p+0 0x1.2p+0 ");
    assert_eq!(float("%#a", 1.0), "0x1.p+0");
    assert_eq!(float("%020a", 1.0), "0x000000000000001p+0");
    assert_eq!(float("%.20a", 1.1), "0x1.199999999999a0000000p+0");
}

#[test]
fn strings_come_in_order_and_null_ones_are_not_asked_for() {
    let format = Format::parse(b"%s %s %s").unwrap();
    let block = [1u64, 0, 3].map(u64::to_le_bytes).concat();
    assert_eq!(format.strings(ArgumentLayout::Packed, &block), [1, 3]);
    assert_eq!(print("%s %s %s", &[1, 0, 3], &["a", "c"]), "a (null) c");
    assert_eq!(print("%.2s|%5s|%-5s|", &[1, 1, 1], &["abc", "de", "f"]), "ab|   de|f    |");
    assert_eq!(print("%.5s|%.6s", &[0, 0], &[]), "|(null)");
    assert_eq!(print("%8.3s|%08s|", &[0, 0], &[]), "        |  (null)|");
    assert_eq!(print("%.s|%.0s|%hs", &[1; 3], &["abc"; 3]), "||abc");
    assert_eq!(print("%10s and more %ld", &[1, 5], &["x"]), "         x and more 5");
}

#[test]
fn characters_and_pointers() {
    assert_eq!(print("%c%3c", &[0x42_0000_0041], &[]), "A  B");
    assert_eq!(print("a%cb", &[0], &[]), "a\0b");
    assert_eq!(print("%p %p", &[0, 0xabc], &[]), "(nil) 0xabc");
    assert_eq!(print("%10p|%-10p|", &[0, 16], &[]), "     (nil)|0x10      |");
    assert_eq!(
        print("%010p|%08p|%.3p|%+p", &[0, 18, 18, 18], &[]),
        "     (nil)|0x000012|0x012|+0x12"
    );
    assert_eq!(print("%03c|%-3c|%.0c", &[0x41_0000_0041; 2], &[]), "  A|A  |A");
    assert_eq!(print("%lc%3lc", &[0x42_0000_0041], &[]), "A  B");
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
    assert_eq!(print("%*y %d", &[0x5_0000_0004], &[]), "%*y 5");
    assert_eq!(print("%99999999y %.*ls", &[u64::MAX >> 33, 1], &[]), "%99999999y %.*ls");
    assert_eq!(print("%2$d %C%S", &[], &[]), "%2$d %C%S");
    assert_eq!(print("%n%ld", &[1, 2], &[]), "2");
}

#[test]
fn percent_signs_are_printed_whatever_stands_between() {
    assert_eq!(print("%%|%5%|%-.3%|%l%|%*%|%d", &[0x7_0000_0003], &[]), "%|%|%|%|%|7");
}

#[test]
fn a_format_that_ends_in_a_directive_is_an_error() {
    assert_eq!(Format::parse(b"ab%").unwrap_err(), FormatError::Incomplete(2));
    assert_eq!(Format::parse(b"%-5.3l").unwrap_err(), FormatError::Incomplete(0));
}

#[test]
fn there_may_be_any_number_of_arguments() {
    let numbers: Vec<u64> = (0..1000).collect();
    let wanted: String = numbers.iter().map(|number| format!("{number};")).collect();
    assert_eq!(print(&"%lu;".repeat(1000), &numbers, &[]), wanted);
    assert_eq!(print(&"%s".repeat(100), &[1; 100], &["ab"; 100]), "ab".repeat(100));
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
    assert_eq!(render("x%.2147483648s"), Err(RenderError::FieldTooLong(1 << 31)));
    assert_eq!(render("x%lc"), Err(RenderError::WideCharacter(i32::MAX as u32)));
    assert_eq!(out, b"before");
}

#[test]
fn large_precisions_that_print_little_cost_little() {
    assert_eq!(print("%.2147483647s|%.*s", &[1, i32::MAX as u64, 1], &["abc"; 2]), "abc|abc");
    // A mebibyte of zeros for each of them would take seconds.
    let (format, values) = ("%.1048576g".repeat(10_000), vec![0.5f64.to_bits(); 10_000]);
    assert_eq!(print(&format, &values, &[]), "0.5".repeat(10_000));
    assert_eq!(float("%.1048576g", 5e-324).len(), 751 + "4.e-324".len() - 1);
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
            for strings in [&strings[..], &strings[..strings.len() / 2]] {
                let mut out = b"before".to_vec();
                match format.render(layout, &block, strings, &mut out) {
                    Ok(()) => assert!(out.starts_with(b"before") && out.len() <= MAX_OUTPUT + 6),
                    Err(_) => assert_eq!(out, b"before"),
                }
            }
        }
    }
}
