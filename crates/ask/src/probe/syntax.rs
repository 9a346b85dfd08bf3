//! The text of a probe.
//!
//! Input: what a user writes. Output: where values are read, and expressions.
//!
//! ```text
//! probe       [NAME=]place[(value, …)] | NAME=from probe to probe [by VALUE]
//! place       FUNCTION | FUNCTION+OFFSET | FUNCTION%return | 0xADDRESS | FILE.c:LINE
//!             | tracepoint:NAME | access:STRUCTURE.FIELD[%read | %write] | [SELECT …]
//! value       [NAME=]expression[:string]
//! expression  *expression | (TYPE)expression | expression->FIELD | expression.FIELD
//!             | expression[N] | (expression) | PARAMETER | VARIABLE | current
//!             | %REGISTER | $retval
//! ```

use anyhow::{Result, bail, ensure};

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskedText {
    /// A probe.
    Probe(ProbeText),
    /// Intervals between the hits of two probes.
    Pair(PairText),
}

/// Intervals, each from a hit of one probe to the next hit of another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairText {
    /// The name of its table.
    pub name: String,
    /// The probe at the beginning.
    pub from: ProbeText,
    /// The probe at the end.
    pub to: ProbeText,
    /// The value of both probes that must be equal. `None`: the task.
    pub by: Option<String>,
}

/// A probe as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeText {
    /// The name of its table.
    pub name: Option<String>,
    /// Where it is.
    pub place: ProbePlace,
    /// The values.
    pub values: Vec<ValueText>,
}

/// Where a probe is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbePlace {
    /// At the entry of a function.
    Entry(String),
    /// Before the instruction of a function at this offset, in bytes.
    Offset(String, u64),
    /// Before the instructions with which a function returns.
    Return(String),
    /// Before the instruction at an address.
    Address(u64),
    /// Before the first instruction of each stretch of code of a source line: the end of the file's
    /// path, and the line.
    Line(String, u64),
    /// Where the kernel would report a tracepoint.
    Tracepoint(String),
    /// Before the instructions that access a field of the objects of a structure.
    Access(AccessText),
    /// Before the instructions at the positions that a question gives.
    Rows(String),
}

/// Accesses to a field, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessText {
    /// The structure or slab cache.
    pub structure: String,
    /// The field, as `a.b[1]`.
    pub field: String,
    /// Only loads (`false`) or stores (`true`).
    pub stores: Option<bool>,
}

/// A value as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueText {
    /// The name of its column.
    pub name: Option<String>,
    /// What is read.
    pub expression: Expression,
    /// The value is a pointer to a text, and the text is read.
    pub is_text: bool,
}

/// An expression in C.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// A parameter, a variable, or `current`.
    Name(String),
    /// A register.
    Register(String),
    /// What the function returns.
    ReturnValue,
    /// `*…`
    Dereference(Box<Expression>),
    /// `(struct sk_buff *)…`: the type without the pointers, and how many pointers.
    Cast(String, u32, Box<Expression>),
    /// `….name`
    Member(Box<Expression>, String),
    /// `…->name`
    PointerMember(Box<Expression>, String),
    /// `…[n]`
    Element(Box<Expression>, u64),
}

impl Expression {
    /// The last name in the expression, for its column.
    pub fn last_name(&self) -> &str {
        match self {
            Expression::Name(name)
            | Expression::Register(name)
            | Expression::Member(_, name)
            | Expression::PointerMember(_, name) => name,
            Expression::ReturnValue => "retval",
            Expression::Dereference(inner)
            | Expression::Cast(_, _, inner)
            | Expression::Element(inner, _) => inner.last_name(),
        }
    }
}

/// Reads a probe, or a pair of them.
///
/// # Errors
/// The text is no probe. The error says where.
pub fn parse(text: &str) -> Result<AskedText> {
    let mut from = Reader { text, at: 0 };
    let asked = match from.pair()? {
        Some(pair) => AskedText::Pair(pair),
        None => AskedText::Probe(from.probe()?),
    };
    ensure!(from.rest().trim().is_empty(), "{}", from.message("the end"));
    Ok(asked)
}

/// Whether a word is the path of a source file.
fn is_source(word: &str) -> bool {
    [".c", ".h", ".S"].iter().any(|ending| word.ends_with(ending))
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn message(&self, expected: &str) -> String {
        let rest = self.rest().trim_start();
        let found = if rest.is_empty() { "its end".to_owned() } else { format!("{rest:?}") };
        format!("in the probe {:?}: {expected} was expected, not {found}", self.text)
    }

    fn fails<T>(&self, expected: &str) -> Result<T> {
        bail!("{}", self.message(expected))
    }

    fn skip_spaces(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn takes(&mut self, what: &str) -> bool {
        self.skip_spaces();
        let is_next = self.rest().starts_with(what);
        self.at += if is_next { what.len() } else { 0 };
        is_next
    }

    /// A word that a blank follows.
    fn takes_word(&mut self, word: &str) -> bool {
        self.skip_spaces();
        let behind = self.rest().strip_prefix(word);
        let is_next = behind.is_some_and(|behind| behind.starts_with(char::is_whitespace));
        self.at += if is_next { word.len() } else { 0 };
        is_next
    }

    fn while_in(&mut self, is_in: impl Fn(char) -> bool) -> String {
        self.skip_spaces();
        let rest = self.rest();
        let end = rest.find(|c| !is_in(c)).unwrap_or(rest.len());
        let word = rest[..end].to_owned();
        self.at += end;
        word
    }

    /// A name in C.
    fn word(&mut self) -> Result<String> {
        let word = self.while_in(|c| c.is_ascii_alphanumeric() || c == '_');
        match word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            true => Ok(word),
            false => {
                self.at -= word.len();
                self.fails("a name")
            }
        }
    }

    /// `NAME=from …`. `None`: the text is no pair, and nothing was read.
    fn pair(&mut self) -> Result<Option<PairText>> {
        let before = self.at;
        let Some(name) = self.word().ok().filter(|_| self.takes("=") && self.takes_word("from"))
        else {
            self.at = before;
            return Ok(None);
        };
        let from = self.probe()?;
        if !self.takes_word("to") {
            return self.fails("`to` and a probe");
        }
        let to = self.probe()?;
        let by = match self.takes_word("by") {
            true => Some(self.word()?),
            false => None,
        };
        Ok(Some(PairText { name, from, to, by: by.filter(|by| by != "task") }))
    }

    fn probe(&mut self) -> Result<ProbeText> {
        let before = self.at;
        let name = self.word().ok().filter(|_| self.takes("="));
        if name.is_none() {
            self.at = before;
        }
        let place = self.place()?;
        let mut values = Vec::new();
        if self.takes("(") && !self.takes(")") {
            loop {
                values.push(self.value()?);
                if self.takes(")") {
                    break;
                }
                if !self.takes(",") {
                    return self.fails("a comma or a closing bracket");
                }
            }
        }
        Ok(ProbeText { name, place, values })
    }

    fn place(&mut self) -> Result<ProbePlace> {
        if self.takes("[") {
            return self.question().map(ProbePlace::Rows);
        }
        let word = self.place_word()?;
        if let Some(digits) = word.strip_prefix("0x") {
            return match u64::from_str_radix(digits, 16) {
                Ok(address) => Ok(ProbePlace::Address(address)),
                Err(_) => self.fails("an address"),
            };
        }
        Ok(match word.as_str() {
            "tracepoint" if self.takes(":") => ProbePlace::Tracepoint(self.word()?),
            "access" if self.takes(":") => ProbePlace::Access(self.access()?),
            _ if is_source(&word) && self.takes(":") => ProbePlace::Line(word, self.number()?),
            _ if self.takes("+") => ProbePlace::Offset(word, self.number()?),
            _ if self.takes("%") => match self.word()?.as_str() {
                "return" => ProbePlace::Return(word),
                _ => return self.fails("%return"),
            },
            _ => ProbePlace::Entry(word),
        })
    }

    /// The name of a function: compilers put dots into it. Or an address, or the path of a file.
    fn place_word(&mut self) -> Result<String> {
        let word = self.while_in(|c| c.is_ascii_alphanumeric() || "_./-".contains(c));
        match word.is_empty() {
            false => Ok(word),
            true => self.fails("the name of a function"),
        }
    }

    /// `STRUCTURE.FIELD`, `STRUCTURE.FIELD%write`. Names of slab caches have hyphens.
    fn access(&mut self) -> Result<AccessText> {
        let structure = self.while_in(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
        let field = match self.takes(".") {
            true => self.while_in(|c| c.is_ascii_alphanumeric() || "_.[]".contains(c)),
            false => String::new(),
        };
        if structure.is_empty() || field.is_empty() {
            return self.fails("STRUCTURE.FIELD");
        }
        let stores = match self.takes("%") {
            false => None,
            true => match self.word()?.as_str() {
                "read" => Some(false),
                "write" => Some(true),
                _ => return self.fails("%read or %write"),
            },
        };
        Ok(AccessText { structure, field, stores })
    }

    /// A question in SQL, up to its closing bracket.
    fn question(&mut self) -> Result<String> {
        let (mut open, mut quote) = (0u32, None);
        let rest = self.rest();
        for (at, c) in rest.char_indices() {
            match (quote, c) {
                (Some(begun), c) if c == begun => quote = None,
                (Some(_), _) => {}
                (None, '\'' | '"') => quote = Some(c),
                (None, '[') => open += 1,
                (None, ']') if open > 0 => open -= 1,
                (None, ']') => {
                    let sql = rest[..at].trim().to_owned();
                    self.at += at + 1;
                    return Ok(sql);
                }
                _ => {}
            }
        }
        self.at = self.text.len();
        self.fails("the bracket that closes the question")
    }

    fn number(&mut self) -> Result<u64> {
        let word = self.while_in(|c| c.is_ascii_alphanumeric());
        let number = match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => word.parse(),
        };
        match number {
            Ok(number) => Ok(number),
            Err(_) => {
                self.at -= word.len();
                self.fails("a number")
            }
        }
    }

    fn value(&mut self) -> Result<ValueText> {
        let before = self.at;
        let name = match self.word() {
            Ok(name) if self.takes("=") => Some(name),
            _ => {
                self.at = before;
                None
            }
        };
        let expression = self.expression(0)?;
        let is_text = self.takes(":");
        if is_text && self.word()? != "string" {
            return self.fails(":string");
        }
        Ok(ValueText { name, expression, is_text })
    }

    fn expression(&mut self, depth: u32) -> Result<Expression> {
        ensure!(depth < 32, "in the probe {:?}: an expression is too deep", self.text);
        if self.takes("*") {
            return Ok(Expression::Dereference(Box::new(self.expression(depth + 1)?)));
        }
        if self.takes("(") {
            let before = self.at;
            if let Some((of, pointers)) = self.cast() {
                let inner = Box::new(self.expression(depth + 1)?);
                return Ok(Expression::Cast(of, pointers, inner));
            }
            self.at = before;
            let inner = self.expression(depth + 1)?;
            if !self.takes(")") {
                return self.fails("a closing bracket");
            }
            return self.behind(inner);
        }
        let first = if self.takes("%") {
            Expression::Register(self.word()?)
        } else if self.takes("$") {
            match self.word()?.as_str() {
                "retval" => Expression::ReturnValue,
                _ => return self.fails("$retval"),
            }
        } else {
            Expression::Name(self.word()?)
        };
        self.behind(first)
    }

    /// `struct NAME *)`, `unsigned int)`. The type of a cast has a pointer, or several words: else
    /// it is an expression in brackets.
    fn cast(&mut self) -> Option<(String, u32)> {
        let mut words = Vec::new();
        while let Ok(word) = self.word() {
            words.push(word);
        }
        let mut pointers = 0;
        while self.takes("*") {
            pointers += 1;
        }
        let is_type = self.takes(")") && !words.is_empty() && (pointers > 0 || words.len() > 1);
        is_type.then(|| (words.join(" "), pointers))
    }

    fn behind(&mut self, mut inner: Expression) -> Result<Expression> {
        loop {
            inner = if self.takes("->") {
                Expression::PointerMember(Box::new(inner), self.word()?)
            } else if self.takes(".") {
                Expression::Member(Box::new(inner), self.word()?)
            } else if self.takes("[") {
                let number = self.number()?;
                if !self.takes("]") {
                    return self.fails("a closing bracket");
                }
                Expression::Element(Box::new(inner), number)
            } else {
                return Ok(inner);
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(text: &str) -> ProbeText {
        match parse(text).unwrap() {
            AskedText::Probe(probe) => probe,
            AskedText::Pair(pair) => panic!("{pair:?}"),
        }
    }

    fn access(structure: &str, field: &str, stores: Option<bool>) -> ProbePlace {
        let (structure, field) = (structure.to_owned(), field.to_owned());
        ProbePlace::Access(AccessText { structure, field, stores })
    }

    fn name(name: &str) -> Box<Expression> {
        Box::new(Expression::Name(name.to_owned()))
    }

    #[test]
    fn places_are_read() {
        for (text, place) in [
            ("tcp_v4_rcv", ProbePlace::Entry("tcp_v4_rcv".to_owned())),
            ("f.isra.0()", ProbePlace::Entry("f.isra.0".to_owned())),
            ("f+0x1c", ProbePlace::Offset("f".to_owned(), 0x1c)),
            ("f + 12 ( )", ProbePlace::Offset("f".to_owned(), 12)),
            ("f%return", ProbePlace::Return("f".to_owned())),
            ("0xffffffff81000000", ProbePlace::Address(0xffff_ffff_8100_0000)),
            ("net/ipv4/tcp-x.c:12", ProbePlace::Line("net/ipv4/tcp-x.c".to_owned(), 12)),
            ("tracepoint:sched_switch", ProbePlace::Tracepoint("sched_switch".to_owned())),
            ("tracepoint", ProbePlace::Entry("tracepoint".to_owned())),
            ("access:tcp_sock.a.b[1]%write", access("tcp_sock", "a.b[1]", Some(true))),
            ("access:sock_inode-cache.x", access("sock_inode-cache", "x", None)),
            (
                "[SELECT x[1] FROM t WHERE a = ']' AND b[2]]",
                ProbePlace::Rows("SELECT x[1] FROM t WHERE a = ']' AND b[2]".to_owned()),
            ),
        ] {
            let probe = probe(text);
            assert_eq!((probe.place, probe.values), (place, vec![]), "{text}");
        }
        assert_eq!(probe("a=f").name, Some("a".to_owned()));
        assert_eq!(probe("a=[SELECT 1](%rdi)").values.len(), 1);
    }

    #[test]
    fn pairs_are_read() {
        let AskedText::Pair(pair) = parse("w = from\n f(a) to g%return($retval) by a").unwrap()
        else {
            panic!("no pair");
        };
        assert_eq!((pair.name.as_str(), pair.by.as_deref()), ("w", Some("a")));
        assert_eq!(pair.from, probe("f(a)"));
        assert_eq!(pair.to, probe("g%return($retval)"));
        let AskedText::Pair(pair) = parse("w=from [SELECT 1] to b.c:1 by task").unwrap() else {
            panic!("no pair");
        };
        assert_eq!(pair.by, None);
        // A function may have the name.
        assert_eq!(probe("w=from(a)").place, ProbePlace::Entry("from".to_owned()));
    }

    #[test]
    fn expressions_bind_as_in_c() {
        let member = |inner, name: &str| Expression::Member(inner, name.to_owned());
        let pointed = |inner, name: &str| Expression::PointerMember(inner, name.to_owned());
        for (text, expected) in [
            ("skb->len", pointed(name("skb"), "len")),
            ("*p.q", Expression::Dereference(Box::new(member(name("p"), "q")))),
            ("(*p).q", member(Box::new(Expression::Dereference(name("p"))), "q")),
            ("a[3].b", member(Box::new(Expression::Element(name("a"), 3)), "b")),
            (
                "((struct tcp_sock *)sk)->mss",
                pointed(
                    Box::new(Expression::Cast("struct tcp_sock".to_owned(), 1, name("sk"))),
                    "mss",
                ),
            ),
            (
                "(unsigned int)%rdi",
                Expression::Cast(
                    "unsigned int".to_owned(),
                    0,
                    Box::new(Expression::Register("rdi".to_owned())),
                ),
            ),
            ("(x)", Expression::Name("x".to_owned())),
            ("$retval", Expression::ReturnValue),
        ] {
            let probe = probe(&format!("f({text})"));
            assert_eq!(probe.values[0].expression, expected, "{text}");
        }
        let probe = probe("f(n = a->name:string, b)");
        assert_eq!(probe.values[0].name.as_deref(), Some("n"));
        assert!(probe.values[0].is_text && !probe.values[1].is_text);
        assert_eq!(probe.values[1].expression.last_name(), "b");
    }

    #[test]
    fn errors_say_where() {
        for (text, expected) in [
            ("", "the name of a function"),
            ("f(", "a name was expected, not its end"),
            ("f(a", "a comma or a closing bracket"),
            ("f(a) b", "not \"b\""),
            ("f(a->)", "a name was expected, not \")\""),
            ("f(a[x])", "a number was expected, not \"x])\""),
            ("f%x", "%return was expected"),
            ("f+x", "a number"),
            ("0xzz", "an address"),
            ("f(a:hex)", ":string"),
            ("f($x)", "$retval"),
            ("f(1)", "a name was expected, not \"1)\""),
            ("[SELECT 1", "the bracket that closes the question"),
            ("access:x", "STRUCTURE.FIELD"),
            ("access:x.y%z", "%read or %write"),
            ("tracepoint:", "a name"),
            ("a.c:x", "a number"),
            ("w=from f", "`to` and a probe"),
            ("w=from f to g by", "not \"by\""),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(parse(&format!("f({}a)", "*".repeat(1000))).is_err());
    }
}
