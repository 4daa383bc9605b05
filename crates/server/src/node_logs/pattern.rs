//! Whether a pattern is a regular expression in the sense of Go's `regexp/syntax` with Perl's extensions. Upstream refuses
//! others in that package's words before `journalctl` (which reads PCRE2) sees them; nothing is matched here.

/// Groups within groups that are still understood.
const MAX_DEPTH: usize = 1000;
/// The largest count of a repetition.
const MAX_REPEAT: u32 = 1000;

/// What is wrong, in Go's words.
pub(crate) fn check(pattern: &str) -> Result<(), String> {
    let mut reader = Reader { pattern, at: 0 };
    reader.expression().map_err(|(what, text)| format!("error parsing regexp: {what}: `{text}`"))
}

type Wrong<'a> = (&'static str, &'a str);

/// What stands before the present place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// Nothing that could be repeated.
    Nothing,
    Atom,
    /// A repetition, which began there.
    Repetition(usize),
}

struct Reader<'a> {
    pattern: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        self.pattern.get(self.at..).unwrap_or_default()
    }

    fn since(&self, start: usize) -> &'a str {
        self.pattern.get(start..self.at).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    fn expression(&mut self) -> Result<(), Wrong<'a>> {
        let (mut depth, mut before) = (0_usize, Before::Nothing);
        let mut literal = false;
        loop {
            let start = self.at;
            if literal {
                // Between `\Q` and `\E` (or the end) everything stands for itself.
                literal = !self.eat("\\E") && self.next().is_some();
                before = Before::Atom;
                continue;
            }
            let Some(c) = self.next() else { break };
            before = match c {
                '(' => {
                    depth += 1;
                    if depth > MAX_DEPTH {
                        return Err(("expression nests too deeply", self.pattern));
                    }
                    if self.rest().starts_with('?') && self.group_options(start)? {
                        depth -= 1;
                    }
                    Before::Nothing
                }
                ')' => {
                    depth = depth.checked_sub(1).ok_or(("unexpected )", self.pattern))?;
                    Before::Atom
                }
                '|' => Before::Nothing,
                '[' => self.class(start)?,
                '*' | '+' | '?' => self.repeated(start, before)?,
                '{' => match self.counts() {
                    None => Before::Atom,
                    Some(fine) => {
                        let next = self.repeated(start, before)?;
                        if !fine {
                            return Err(("invalid repeat count", self.since(start)));
                        }
                        next
                    }
                },
                '\\' if self.eat("Q") => {
                    literal = true;
                    before
                }
                '\\' => {
                    self.escape(start, false)?;
                    Before::Atom
                }
                _ => Before::Atom,
            };
        }
        if depth > 0 { Err(("missing closing )", self.pattern)) } else { Ok(()) }
    }

    /// After an operator. It may be made lazy by a `?`.
    fn repeated(&mut self, start: usize, before: Before) -> Result<Before, Wrong<'a>> {
        self.eat("?");
        match before {
            Before::Nothing => Err(("missing argument to repetition operator", self.since(start))),
            Before::Atom => Ok(Before::Repetition(start)),
            Before::Repetition(first) => Err(("invalid nested repetition operator", self.since(first))),
        }
    }

    /// `n}`, `n,}` or `n,m}`, and whether these are counts that may be; anything else is no repetition.
    fn counts(&mut self) -> Option<bool> {
        let (counts, _) = self.rest().split_once('}')?;
        let (low, high) = counts.split_once(',').map_or((counts, None), |(low, high)| (low, Some(high)));
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let plain = digits && (text == "0" || !text.starts_with('0'));
            plain.then(|| text.parse::<u32>().unwrap_or(u32::MAX))
        };
        let low = number(low)?;
        let high = match high {
            None | Some("") => low,
            Some(high) => number(high)?,
        };
        self.at += counts.len() + 1;
        Some(low <= high && high <= MAX_REPEAT)
    }

    /// What follows `(`: a name, or flags. True if it was flags alone and no group is open.
    fn group_options(&mut self, start: usize) -> Result<bool, Wrong<'a>> {
        self.eat("?");
        if self.eat("P<") || self.eat("<") {
            let Some((name, _)) = self.rest().split_once('>') else {
                return Err(("invalid named capture", self.pattern.get(start..).unwrap_or_default()));
            };
            self.at += name.len() + 1;
            let is_word = |c: char| c == '_' || c.is_ascii_alphanumeric();
            return match !name.is_empty() && name.chars().all(is_word) {
                true => Ok(false),
                false => Err(("invalid named capture", self.since(start))),
            };
        }
        let (mut minus, mut flags) = (false, 0);
        while let Some(c) = self.next() {
            match c {
                'i' | 'm' | 's' | 'U' => flags += 1,
                '-' if !minus => (minus, flags) = (true, 0),
                // A minus must take something away.
                ':' | ')' if !minus || flags > 0 => return Ok(c == ')'),
                _ => return Err(("invalid or unsupported Perl syntax", self.since(start))),
            }
        }
        Err(("invalid or unsupported Perl syntax", self.since(start)))
    }

    fn class(&mut self, start: usize) -> Result<Before, Wrong<'a>> {
        let open = ("missing closing ]", self.pattern.get(start..).unwrap_or_default());
        self.eat("^");
        let mut first = true;
        loop {
            let from = self.at;
            if !first && self.eat("]") {
                return Ok(Before::Atom);
            }
            first = false;
            if self.rest().starts_with("[:")
                && let Some((name, _)) = self.rest().split_once(":]")
            {
                self.at += name.len() + 2;
                let name = name.trim_start_matches("[:").trim_start_matches('^');
                if !POSIX.contains(&name) {
                    return Err(("invalid character class range", self.since(from)));
                }
                continue;
            }
            let Some(low) = self.class_character().ok_or(open)?? else { continue };
            if self.rest().starts_with('-') && !self.rest().starts_with("-]") && self.rest().len() > 1 {
                self.next();
                let high = self.class_character().ok_or(open)??;
                if high.is_none_or(|high| high < low) {
                    return Err(("invalid character class range", self.since(from)));
                }
            }
        }
    }

    /// One character of a class, `None` inside for a whole set such as `\d`; `None` at the end of the pattern.
    fn class_character(&mut self) -> Option<Result<Option<char>, Wrong<'a>>> {
        let start = self.at;
        match self.next()? {
            '\\' => Some(self.escape(start, true)),
            c => Some(Ok(Some(c))),
        }
    }

    /// After a backslash: the character that is meant, if it is one.
    fn escape(&mut self, start: usize, in_class: bool) -> Result<Option<char>, Wrong<'a>> {
        let Some(c) = self.next() else { return Err(("trailing backslash at end of expression", "")) };
        let sequence = "invalid escape sequence";
        match c {
            'd' | 'D' | 's' | 'S' | 'w' | 'W' => Ok(None),
            'A' | 'b' | 'B' | 'z' | 'C' if !in_class => Ok(None),
            'p' | 'P' => self.property(start).map(|()| None),
            'a' => Ok(Some('\u{7}')),
            'f' => Ok(Some('\u{c}')),
            'n' => Ok(Some('\n')),
            'r' => Ok(Some('\r')),
            't' => Ok(Some('\t')),
            'v' => Ok(Some('\u{b}')),
            // A single digit would refer back to a group, which is not to be had.
            '1'..='7' if !self.peek().is_some_and(|next| ('0'..='7').contains(&next)) => {
                Err((sequence, self.since(start)))
            }
            '0'..='7' => {
                let mut value = c.to_digit(8).unwrap_or(0);
                for _ in 0..2 {
                    let Some(digit) = self.peek().and_then(|next| next.to_digit(8)) else { break };
                    value = value * 8 + digit;
                    self.next();
                }
                Ok(char::from_u32(value))
            }
            'x' => self.hexadecimal().map(Some).ok_or((sequence, self.since(start))),
            c if c.is_ascii_punctuation() => Ok(Some(c)),
            _ => Err((sequence, self.since(start))),
        }
    }

    /// Two digits, or any number in braces.
    fn hexadecimal(&mut self) -> Option<char> {
        let digits = if self.eat("{") {
            let (digits, _) = self.rest().split_once('}')?;
            self.at += digits.len() + 1;
            digits
        } else {
            let digits = self.rest().get(..2)?;
            self.at += 2;
            digits
        };
        let all = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        u32::from_str_radix(digits, 16).ok().filter(|_| all).and_then(char::from_u32)
    }

    /// A Unicode property: one letter, or a name in braces. Whether there is such a one is left to PCRE2.
    fn property(&mut self, start: usize) -> Result<(), Wrong<'a>> {
        let range = "invalid character class range";
        match self.next() {
            Some('{') => {
                let Some((name, _)) = self.rest().split_once('}') else {
                    return Err((range, self.pattern.get(start..).unwrap_or_default()));
                };
                self.at += name.len() + 1;
                Ok(())
            }
            Some(c) if "LMNPSZC".contains(c) => Ok(()),
            _ => Err((range, self.since(start))),
        }
    }
}

const POSIX: &[&str] = &[
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space",
    "upper", "word", "xdigit",
];

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn expressions_that_are_fine() {
        for pattern in [
            "",
            "error|warning",
            "(?i)fail(ed|ure)?",
            "^\\[\\d+\\] .*$",
            "[a-z0-9_-]+",
            "[]a]",
            "[^]a]",
            "[[:alpha:]_]",
            "[\\w\\-.]",
            "a{2}",
            "a{2,}b{3,5}?",
            "a{,2}",
            "{",
            "x{a}",
            "(?P<name>x)(?<other>y)",
            "(?i-s:x)",
            "\\x41\\x{1F600}\\101",
            "\\Qa*(b\\E+",
            "\\pL\\p{Greek}",
            "a|",
            "[a-c-e]",
            "[+--]",
            "^*",
            "(a*)*",
            "()",
            "ä+",
        ] {
            assert_eq!(check(pattern), Ok(()), "{pattern}");
        }
    }

    #[test]
    fn expressions_that_are_not() {
        for (pattern, why) in [
            ("(", "missing closing ): `(`"),
            ("a(b(c)", "missing closing ): `a(b(c)`"),
            ("a)", "unexpected ): `a)`"),
            ("[a", "missing closing ]: `[a`"),
            ("x[a-", "missing closing ]: `[a-`"),
            ("[z-a]", "invalid character class range: `z-a`"),
            ("[[:what:]]", "invalid character class range: `[:what:]`"),
            ("*", "missing argument to repetition operator: `*`"),
            ("a|*", "missing argument to repetition operator: `*`"),
            ("(?i)*", "missing argument to repetition operator: `*`"),
            ("a**", "invalid nested repetition operator: `**`"),
            ("a*?+", "invalid nested repetition operator: `*?+`"),
            ("a{2}{3}", "invalid nested repetition operator: `{2}{3}`"),
            ("a{1001}", "invalid repeat count: `{1001}`"),
            ("a{3,2}", "invalid repeat count: `{3,2}`"),
            ("a\\", "trailing backslash at end of expression: ``"),
            ("\\8", "invalid escape sequence: `\\8`"),
            ("\\1", "invalid escape sequence: `\\1`"),
            ("\\y", "invalid escape sequence: `\\y`"),
            ("(?=x)", "invalid or unsupported Perl syntax: `(?=`"),
            ("(?P<n", "invalid named capture: `(?P<n`"),
            ("(?P<>x)", "invalid named capture: `(?P<>`"),
            ("(?i", "invalid or unsupported Perl syntax: `(?i`"),
        ] {
            assert_eq!(check(pattern), Err(format!("error parsing regexp: {why}")), "{pattern}");
        }
        assert!(check(&"(".repeat(5000)).unwrap_err().contains("nests too deeply"));
    }
}
