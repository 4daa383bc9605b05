//! `$(VAR)` in environment values, commands and arguments.

/// What one value, argument or path may become. Linux takes 128 KiB for one, so that nothing that could run is refused.
pub const MAX_EXPANDED_BYTES: usize = 1 << 20;

/// What a container's environment, and its command with its arguments, may have.
pub(super) const MAX_PROGRAM_BYTES: usize = 8 << 20;

/// Expands `$(VAR)` by `lookup`. A name that is not found stays as it is written, `$$` is a literal `$`, and an
/// unterminated `$(` is kept. `None` when more than `max` bytes would come of it: variables that name others, which name others,
/// make gigabytes of a page.
pub fn expand<'a>(input: &str, max: usize, lookup: impl Fn(&str) -> Option<&'a str>) -> Option<String> {
    let mut output = Bounded { text: String::with_capacity(input.len().min(max)), max };
    let mut rest = input;
    while let Some((before, after)) = rest.split_once('$') {
        output.push(before)?;
        let mut tail = after.chars();
        rest = match tail.next() {
            None => {
                output.push("$")?;
                after
            }
            Some('$') => {
                output.push("$")?;
                tail.as_str()
            }
            Some('(') => match tail.as_str().split_once(')') {
                Some((name, behind)) => {
                    match lookup(name) {
                        Some(value) => output.push(value)?,
                        None => ["$(", name, ")"].into_iter().try_for_each(|part| output.push(part))?,
                    }
                    behind
                }
                None => {
                    output.push("$(")?;
                    tail.as_str()
                }
            },
            Some(other) => {
                output.push("$")?;
                output.push(other.encode_utf8(&mut [0; 4]))?;
                tail.as_str()
            }
        };
    }
    output.push(rest)?;
    Some(output.text)
}

struct Bounded {
    text: String,
    max: usize,
}

impl Bounded {
    fn push(&mut self, part: &str) -> Option<()> {
        (part.len() <= self.max.saturating_sub(self.text.len())).then(|| self.text.push_str(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expands_as_upstream() {
        let lookup = |name: &str| match name {
            "VAR_A" => Some("A"),
            "VAR_B" => Some("B"),
            "VAR_REF" => Some("$(VAR_A)"),
            "VAR_EMPTY" => Some(""),
            _ => None,
        };
        // Rows of upstream's third_party/forked/golang/expansion/expand_test.go.
        for (input, expected) in [
            ("$(VAR_A)", "A"),
            ("___$(VAR_B)___", "___B___"),
            ("___$(VAR_C)___", "___$(VAR_C)___"),
            ("$$(VAR_A)_$(VAR_A)", "$(VAR_A)_A"),
            ("$(VAR_A)_$$(VAR_A)", "A_$(VAR_A)"),
            ("$$$(VAR_A)", "$A"),
            ("$$$$(VAR_A)", "$$(VAR_A)"),
            ("$$(VAR_A)", "$(VAR_A)"),
            ("$(VAR_REF)", "$(VAR_A)"),
            ("%%$(VAR_REF)--$(VAR_REF)%%", "%%$(VAR_A)--$(VAR_A)%%"),
            ("foo$(VAR_EMPTY)bar", "foobar"),
            ("foo\\$(VAR_A)bar", "foo\\Abar"),
            ("foo\\\\$(VAR_A)bar", "foo\\\\Abar"),
            ("foo\\$$(VAR_A)", "foo\\$(VAR_A)"),
            ("$(VAR_A", "$(VAR_A"),
            ("$(VAR_A)_$(VAR_B", "A_$(VAR_B"),
            ("$VAR_A)", "$VAR_A)"),
            ("${VAR_A}", "${VAR_A}"),
            ("$(VAR_B)_______$(A", "B_______$(A"),
            ("$(VAR_C)_______$(A", "$(VAR_C)_______$(A"),
            ("$(VAR_A)_$", "A_$"),
            ("$", "$"),
            ("$$", "$"),
            ("", ""),
            ("$()", "$()"),
            ("$é$(VAR_A)", "$éA"),
            ("$(é)$(VAR_A)", "$(é)A"),
        ] {
            assert_eq!(expand(input, MAX_EXPANDED_BYTES, lookup).as_deref(), Some(expected), "{input}");
        }
    }

    #[test]
    fn what_would_become_too_long_is_refused() {
        let long = "x".repeat(100);
        let lookup = |name: &str| (name == "LONG").then_some(long.as_str());
        let length = |input: &str| expand(input, 250, lookup).map(|text| text.len());
        assert_eq!(length(&"$(LONG)".repeat(2)), Some(200));
        assert_eq!(length(&"$(LONG)".repeat(3)), None);
        assert_eq!(length(&format!("{}{}", "$(LONG)".repeat(2), "y".repeat(50))), Some(250));
        assert_eq!(length(&format!("{}{}", "$(LONG)".repeat(2), "y".repeat(51))), None);
        assert_eq!(length(&"$(NONE)".repeat(36)), None);
    }
}
