"""Turns the declarations of src/backend/hsa/ffi.rs (the argument) into a C file that compiles only if
the headers of the HSA runtime say the same: constants, sizes, offsets, signatures."""

import re
import sys

source = open(sys.argv[1]).read()
names = dict(re.findall(r'(\w+) = "([^"]+)":', source))
structs_at, names_at = source.index("structs! {"), source.index("names! {")
constants_at = source.index("constants! {")
functions_at = source.index("functions! {", constants_at)
functions_end = source.index("/// Why the functions")
structs = source[structs_at:names_at]
struct_names = dict(re.findall(r"^    (\w+) = (\w+) \{", structs, re.M))
PRIMITIVES = {
    "u32": "uint32_t", "u64": "uint64_t", "i64": "int64_t", "usize": "size_t",
    "c_void": "void", "c_char": "char",
}
SIZES = {"i64": 8, "u64": 8, "u32": 4, "u16": 2, "*mut c_void": 8, "Signal": 8, "[u32; 2]": 8,
         "Agent": 8, "EventType": 4, "MemoryFault": 24}


def in_c(rust):
    rust = rust.strip()
    if pointer := re.match(r"\*(mut|const) (.+)", rust):
        return in_c(pointer[2]) + (" const" if pointer[1] == "const" else "") + " *"
    if rust in names:
        return f"T_{rust}"
    return struct_names.get(rust) or PRIMITIVES[rust]


def assertion(condition, what):
    print(f'_Static_assert({condition}, "{what}");')


print("#include <stdbool.h>\n#include <stddef.h>")
print("#include <hsa/hsa.h>\n#include <hsa/hsa_ext_amd.h>\n#include <hsa/amd_hsa_signal.h>")
for name, c in names.items():
    print("typedef " + (c.replace("(*)", f"(*T_{name})") if "(*)" in c else f"{c} T_{name}") + ";")

constants = re.findall(r"(\w+): \w+ = (\w+);", source[constants_at:functions_at])
for name, value in constants:
    assertion(f"{name} == {value}", name)

functions = re.findall(
    r"fn (hsa\w+)\((.*?)\)(?: -> (\w+))?;", source[functions_at:functions_end], re.S
)
for name, arguments, result in functions:
    types = [in_c(argument.split(":")[1]) for argument in arguments.split(",") if argument.strip()]
    print(f"{in_c(result) if result else 'void'} (*f_{name})({', '.join(types) or 'void'}) = {name};")

fields = re.findall(r"^    (\w+) = (\w+) \{(.*?)\}", structs, re.M | re.S)
for _, c, body in fields:
    offset = 0
    for field, rust in re.findall(r"(?:r#)?(\w+): ([^,]+),", body):
        size = SIZES[rust]
        align = {"[u32; 2]": 4, "MemoryFault": 8}.get(rust, size)
        offset = (offset + align - 1) // align * align
        assertion(f"offsetof({c}, {field}) == {offset}", f"{c}.{field}")
        assertion(f"sizeof((({c}*)0)->{field}) == {size}", f"{c}.{field}")
        offset += size
    assertion(f"sizeof({c}) == {(offset + 7) // 8 * 8}", c)

# Nothing found would be nothing checked.
assert len(constants) > 10 and len(functions) > 20 and len(fields) > 1
