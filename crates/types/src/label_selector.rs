//! Which objects are meant, by their labels: as the API server and kubectl read selectors.

use std::collections::BTreeMap;

/// A label selector such as `app=web,tier in (a,b),!canary`. The empty one means all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    labels: Vec<Label>,
}

/// Why a selector cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadLabelSelector(String);

impl LabelSelector {
    /// Reads one.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn parse(text: &str) -> Result<Self, BadLabelSelector> {
        labels(text).map(|labels| Self { labels })
    }

    /// Whether it means all objects.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        self.labels.is_empty()
    }

    /// Whether it means an object with these labels.
    #[must_use]
    pub fn matches(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        let value = |key: &String| labels.and_then(|labels| labels.get(key)).map(String::as_str);
        self.labels.iter().all(|label| label.matches(value(&label.key)))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Label {
    key: String,
    rule: Rule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Exists,
    Absent,
    In(Vec<String>),
    /// A pod without the label is selected, too.
    NotIn(Vec<String>),
    Above(i64),
    Below(i64),
}

impl Label {
    fn matches(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match &self.rule {
            Rule::Exists => value.is_some(),
            Rule::Absent => value.is_none(),
            Rule::In(values) => value.is_some_and(|value| values.iter().any(|it| it == value)),
            Rule::NotIn(values) => value.is_none_or(|value| values.iter().all(|it| it != value)),
            Rule::Above(bound) => number().is_some_and(|number| number > *bound),
            Rule::Below(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

/// Upstream: `apimachinery/pkg/labels`.
fn labels(text: &str) -> Result<Vec<Label>, BadLabelSelector> {
    let bad = BadLabelSelector;
    let mut words = Words { left: text }.peekable();
    let mut labels = Vec::new();
    if words.peek().is_none() {
        return Ok(labels);
    }
    loop {
        let absent = words.next_if_eq(&"!").is_some();
        let key = words.next().filter(|word| is_key(word));
        let key = key.ok_or_else(|| bad("a label's name is missing or malformed".into()))?.to_owned();
        let rule = match words.peek().copied() {
            None | Some(",") if absent => Rule::Absent,
            None | Some(",") => Rule::Exists,
            Some(other) if absent => return Err(bad(format!("{other:?} after !{key}"))),
            Some(operator @ ("=" | "==" | "!=")) => {
                words.next();
                // `a=` asks for the empty value.
                let value = match words.peek().copied() {
                    None | Some(",") => "",
                    Some(value) => {
                        words.next();
                        value
                    }
                };
                let values =
                    vec![checked(value).ok_or_else(|| bad(format!("{value:?} is no label's value")))?];
                if operator == "!=" { Rule::NotIn(values) } else { Rule::In(values) }
            }
            Some(operator @ ("in" | "notin")) => {
                words.next();
                let values = list(&mut words).map_err(bad)?;
                if operator == "in" { Rule::In(values) } else { Rule::NotIn(values) }
            }
            Some(operator @ (">" | "<")) => {
                words.next();
                let bound = words.next().and_then(|word| word.parse().ok());
                let bound = bound.ok_or_else(|| bad(format!("a whole number must follow {operator}")))?;
                if operator == ">" { Rule::Above(bound) } else { Rule::Below(bound) }
            }
            Some(other) => return Err(bad(format!("{other:?} after {key}"))),
        };
        labels.push(Label { key, rule });
        match words.next() {
            None => return Ok(labels),
            Some(",") => {}
            Some(other) => return Err(bad(format!("{other:?} where a comma should be"))),
        }
    }
}

/// `(a,b)`.
fn list<'a>(words: &mut std::iter::Peekable<Words<'a>>) -> Result<Vec<String>, String> {
    if words.next() != Some("(") {
        return Err("a list such as (a,b) must follow in and notin".into());
    }
    let mut values = Vec::new();
    loop {
        let value = match words.peek().copied() {
            Some("," | ")") => "",
            Some(value) => {
                words.next();
                value
            }
            None => return Err("the list has no end".into()),
        };
        values.push(checked(value).ok_or_else(|| format!("{value:?} is no label's value"))?);
        match words.next() {
            Some(")") => return Ok(values),
            Some(",") => {}
            _ => return Err("the list has no end".into()),
        }
    }
}

fn checked(value: &str) -> Option<String> {
    let good = value.len() <= 63
        && value.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && value.chars().next().is_none_or(|c| c.is_ascii_alphanumeric())
        && value.chars().last().is_none_or(|c| c.is_ascii_alphanumeric());
    good.then(|| value.to_owned())
}

fn is_key(word: &str) -> bool {
    let (prefix, name) = word.rsplit_once('/').map_or((None, word), |(prefix, name)| (Some(prefix), name));
    let prefix_is_good = prefix.is_none_or(|prefix| {
        !prefix.is_empty()
            && prefix.len() <= 253
            && prefix.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.'))
    });
    prefix_is_good && !name.is_empty() && checked(name).is_some()
}

/// Operators, commas and parentheses stand for themselves; everything else up to a space or one of them is a word.
struct Words<'a> {
    left: &'a str,
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.left = self.left.trim_start();
        let first = self.left.chars().next()?;
        let end = match first {
            '=' | '!' => self.left.chars().take(2).take_while(|c| *c == first || *c == '=').count(),
            ',' | '(' | ')' | '<' | '>' => 1,
            _ => self
                .left
                .find(|c: char| c.is_whitespace() || matches!(c, '=' | '!' | ',' | '(' | ')' | '<' | '>'))
                .unwrap_or(self.left.len()),
        };
        // `!!a` is two words.
        let end = if self.left.starts_with("!!") { 1 } else { end };
        let (word, left) = self.left.split_at(end);
        self.left = left;
        Some(word)
    }
}
