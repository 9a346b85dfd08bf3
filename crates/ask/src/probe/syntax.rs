//! The text of a probe.
//!
//! Input: what a user writes. Output: where values are read, and expressions.
//!
//! ```text
//! probe       [NAME=]place[(value, …)]
//! place       FUNCTION | FUNCTION+OFFSET | FUNCTION%return | 0xADDRESS
//! value       [NAME=]expression[:string]
//! expression  *expression | (TYPE)expression | expression->FIELD | expression.FIELD
//!             | expression[N] | (expression) | PARAMETER | VARIABLE | current
//!             | %REGISTER | $retval
//! ```

use anyhow::{Result, bail, ensure};

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

/// Reads a probe.
///
/// # Errors
/// The text is no probe. The error says where.
pub fn parse(text: &str) -> Result<ProbeText> {
    let mut from = Reader { text, at: 0 };
    let first = from.place_word()?;
    let (name, word) = match from.takes("=") {
        true => (Some(first), from.place_word()?),
        false => (None, first),
    };
    let place = match word.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16)) {
        Some(Ok(address)) => ProbePlace::Address(address),
        Some(Err(_)) => return from.fails("an address"),
        None if from.takes("+") => ProbePlace::Offset(word, from.number()?),
        None if from.takes("%") => match from.word()?.as_str() {
            "return" => ProbePlace::Return(word),
            _ => return from.fails("%return"),
        },
        None => ProbePlace::Entry(word),
    };
    let mut values = Vec::new();
    if from.takes("(") && !from.takes(")") {
        loop {
            values.push(from.value()?);
            if from.takes(")") {
                break;
            }
            if !from.takes(",") {
                return from.fails("a comma or a closing bracket");
            }
        }
    }
    ensure!(from.rest().trim().is_empty(), "{}", from.message("the end"));
    Ok(ProbeText { name, place, values })
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

    /// The name of a function: compilers put dots into it. Or an address.
    fn place_word(&mut self) -> Result<String> {
        let word = self.while_in(|c| c.is_ascii_alphanumeric() || "_.".contains(c));
        match word.is_empty() {
            false => Ok(word),
            true => self.fails("the name of a function"),
        }
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
        ] {
            let probe = parse(text).unwrap();
            assert_eq!((probe.place, probe.values), (place, vec![]), "{text}");
        }
        assert_eq!(parse("a=f").unwrap().name, Some("a".to_owned()));
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
            let probe = parse(&format!("f({text})")).unwrap();
            assert_eq!(probe.values[0].expression, expected, "{text}");
        }
        let probe = parse("f(n = a->name:string, b)").unwrap();
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
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(parse(&format!("f({}a)", "*".repeat(1000))).is_err());
    }
}
