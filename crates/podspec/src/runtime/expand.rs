//! `$(VAR)` in environment values, commands and arguments.

/// Expands `$(VAR)` by `lookup`. A name that is not found stays as it is written, `$$` is a literal `$`, and an
/// unterminated `$(` is kept.
pub fn expand<'a>(input: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut output = String::with_capacity(input.len());
    let mut rest = input;
    while let Some((before, after)) = rest.split_once('$') {
        output.push_str(before);
        let mut tail = after.chars();
        rest = match tail.next() {
            None => {
                output.push('$');
                after
            }
            Some('$') => {
                output.push('$');
                tail.as_str()
            }
            Some('(') => match tail.as_str().split_once(')') {
                Some((name, behind)) => {
                    match lookup(name) {
                        Some(value) => output.push_str(value),
                        None => output.extend(["$(", name, ")"]),
                    }
                    behind
                }
                None => {
                    output.push_str("$(");
                    tail.as_str()
                }
            },
            Some(other) => {
                output.push('$');
                output.push(other);
                tail.as_str()
            }
        };
    }
    output.push_str(rest);
    output
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
            assert_eq!(expand(input, lookup), expected, "{input}");
        }
    }
}
