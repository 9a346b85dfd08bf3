//! The points of inlined calls: a small function that is called, and the same function as Kernlane
//! inlines it, from one caller and from several; and an indirect call through a retpoline and as
//! Kernlane promotes it.
//!
//! Output: points. One operation is a call and its return, or what stands in their place. The
//! function is one addition, so that nearly all of the time is that of calls and returns. The
//! thunks are those of [`thunks`](super::thunks), the guard that of `emit::module`.

use super::point::{Memory, Point};

/// The name of all these points before the slash.
pub(super) const CURVE: &str = "inlined";

/// From how many places the function is called, in an iteration.
const CALLERS: [u64; 2] = [1, 8];
/// Calls of a run.
const CALLS: u64 = 20_000;

/// What stands in a caller, and what it needs elsewhere. In all texts `{f}` is the function, `{r}`
/// its return thunk and `{i}` the retpoline; `{c}` is code of this caller elsewhere, and `{b}` is
/// behind the call.
struct Way {
    name: &'static str,
    /// The call; `%r11` has the function's address.
    call: &'static str,
    /// Elsewhere, once for each caller.
    elsewhere: &'static str,
    /// How the function ends, if it is called.
    ends: &'static str,
}

/// `srso_alias_return_thunk` and `srso_alias_safe_ret`; `__x86_indirect_thunk_r11`.
const THUNKS: &str = ".balign 64\n{r}_safe:\nlea 8(%rsp), %rsp\nret\nint3\n\
                      {r}:\ncall {r}_safe\nud2\n\
                      .balign 32\n{i}:\ncall 2f\nint3\n2:\nmov %r11, (%rsp)\nret\nint3";
/// The function's code, which jumps back.
const COPY: &str = "{c}:\ninc %rax\njmp {b}";
/// Where the pointer names another function, the indirect call is made.
const UNLIKELY: &str = "{c}:\ncall {i}\njmp {b}";
const UNLIKELY_AND_COPY: &str = "{c}:\ncall {i}\njmp {b}\n.balign 16\n{c}_copy:\ninc %rax\njmp {b}";

const WAYS: [Way; 9] = [
    Way { name: "return", call: "call {f}", elsewhere: "", ends: "ret" },
    Way { name: "safe-return", call: "call {f}", elsewhere: "", ends: "jmp {r}" },
    Way { name: "jumps", call: "jmp {c}\n{b}:", elsewhere: COPY, ends: "ret" },
    Way { name: "behind", call: "inc %rax", elsewhere: "", ends: "ret" },
    Way { name: "retpoline", call: "call {i}", elsewhere: "", ends: "ret" },
    Way {
        name: "promoted",
        call: "cmp ${f}, %r11\njne {c}\ncall {f}\n{b}:",
        elsewhere: UNLIKELY,
        ends: "ret",
    },
    Way {
        name: "promoted-jumps",
        call: "cmp ${f}, %r11\njne {c}\njmp {c}_copy\n{b}:",
        elsewhere: UNLIKELY_AND_COPY,
        ends: "ret",
    },
    Way {
        name: "promoted-behind",
        call: "cmp ${f}, %r11\njne {c}\ninc %rax\n{b}:",
        elsewhere: UNLIKELY,
        ends: "ret",
    },
    // The pointer never names the function that the guard compares it with.
    Way {
        name: "promoted-wrong",
        call: "cmp ${r}, %r11\njne {c}\ncall {f}\n{b}:",
        elsewhere: UNLIKELY,
        ends: "ret",
    },
];

impl Way {
    fn point(&self, callers: u64) -> Point {
        let name = format!("{}-{callers}", self.name);
        let label = |what: &str| format!(".L{CURVE}_{}_{what}", name.replace('-', "_"));
        let (function, thunk, retpoline) = (label("function"), label("return"), label("indirect"));
        let text = |text: &str, caller: u64| {
            text.replace("{f}", &function)
                .replace("{r}", &thunk)
                .replace("{i}", &retpoline)
                .replace("{c}", &label(&format!("elsewhere_{caller}")))
                .replace("{b}", &label(&format!("behind_{caller}")))
        };
        let of_callers =
            |it: &str| -> Vec<String> { (0..callers).map(|caller| text(it, caller)).collect() };
        let elsewhere = of_callers(self.elsewhere).join("\n.balign 16\n");
        let ends = text(self.ends, 0);
        let thunks = text(THUNKS, 0);
        Point {
            name: format!("{CURVE}/{name}"),
            size: None,
            operations: CALLS,
            iterations: CALLS / callers,
            memory: Memory::None,
            expected: CALLS,
            before: format!("xor %eax, %eax\nlea {function}(%rip), %r11"),
            body: of_callers(self.call).join("\n"),
            after: format!(
                "ret\n.balign 64\n{elsewhere}\n.balign 64\n{function}:\ninc %rax\n{ends}\n{thunks}"
            ),
        }
    }
}

/// All points of inlined calls.
pub(super) fn points() -> impl Iterator<Item = Point> {
    WAYS.iter().flat_map(|way| CALLERS.iter().map(|&callers| way.point(callers)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_has_its_code_once_for_each_caller() {
        let count = |text: &str, what: &str| text.matches(what).count();
        for point in points() {
            let callers = (point.operations / point.iterations) as usize;
            let name = point.name.strip_prefix("inlined/").unwrap();
            let way = name.strip_suffix(&format!("-{callers}")).unwrap();
            assert_eq!(point.iterations * callers as u64, CALLS, "{name}");
            let guards = if way.starts_with("promoted") { callers } else { 0 };
            assert_eq!(count(&point.body, "cmp $"), guards, "{name}");
            let back = format!("jmp .L{CURVE}_{}_behind_", name.replace('-', "_"));
            let jumps_back = count(&point.after, &back);
            let expected = match way {
                "promoted-jumps" => 2 * callers,
                "jumps" => callers,
                _ => guards,
            };
            assert_eq!(jumps_back, expected, "{name}");
        }
    }
}
