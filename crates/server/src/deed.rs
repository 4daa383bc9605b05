//! What a request does, in the words of the audit log.

use http::Method;

use crate::request::Query;

/// Method and path, and where a command is run, the command.
pub(crate) fn deed(method: &Method, path: &str, query: Option<&str>) -> String {
    let mut text = format!("{method} {path}");
    let service = path.strip_prefix('/').and_then(|path| path.split('/').next()).unwrap_or_default();
    let parameter = match service {
        "exec" => "command",
        "run" => "cmd",
        _ => return text,
    };
    let query = Query::parse(query);
    let words: Vec<&str> = query.all(parameter).collect();
    if !words.is_empty() {
        // Quoted, so that no argument looks like another field of the line.
        text.push_str(&format!(" {parameter}={words:?}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_named() {
        for (method, path, query, expected) in [
            (Method::GET, "/pods", Some("command=x"), "GET /pods"),
            (
                Method::POST,
                "/exec/ns/pod/c",
                Some("command=sh&command=-c&command=a+b%0A&tty=1"),
                r#"POST /exec/ns/pod/c command=["sh", "-c", "a b\n"]"#,
            ),
            (Method::POST, "/run/ns/pod/c", Some("cmd=ls+-l"), r#"POST /run/ns/pod/c cmd=["ls -l"]"#),
            (Method::GET, "/exec/ns/pod/c", None, "GET /exec/ns/pod/c"),
        ] {
            assert_eq!(deed(&method, path, query), expected);
        }
    }
}
