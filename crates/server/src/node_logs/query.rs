//! What a log query asks for, and why it is refused. Names, limits, order and texts as upstream (`nodeLogQuery` in
//! `pkg/kubelet/kubelet_server_journal.go`, 1.37).

use jiff::{Timestamp, tz::TimeZone};
use mainstay_nodelogs::{JournalQuery, LogDirectory};

use super::pattern;
use crate::{
    log_query,
    request::{Query, quoted},
};

const MAX_TAIL_LINES: i64 = 100_000;
const MAX_SERVICE_LENGTH: usize = 256;
const MAX_SERVICES: usize = 4;

/// A log query that could be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeLogQuery {
    /// What is to be found by its name.
    pub(crate) services: Vec<String>,
    /// What has a slash in it.
    pub(crate) files: Vec<String>,
    pub(crate) options: Options,
}

/// What is wanted of the services' logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    since: Option<Timestamp>,
    /// With its text, which is shown if it is wrong.
    until: Option<(Timestamp, String)>,
    tail_lines: Option<i64>,
    boot: Option<i64>,
    pattern: String,
}

impl NodeLogQuery {
    /// Reads it; `None` if nothing is asked, so that the path counts.
    ///
    /// # Errors
    /// Upstream's text for a 400.
    pub(crate) fn parse(query: &Query<'_>) -> Result<Option<Self>, String> {
        let mut errors = Vec::new();
        let mut parsed = Self::default();
        let wanted: Vec<&str> = query.all("query").collect();
        for name in &wanted {
            if name.contains(['/', '\\']) {
                parsed.files.push((*name).to_owned());
            } else if !name.trim().is_empty() {
                parsed.services.push((*name).to_owned());
            }
        }
        if !wanted.is_empty() && parsed.files.is_empty() && parsed.services.is_empty() {
            errors.push(invalid("query", &json(&wanted), "may not be empty"));
        }
        let given = |name| query.first(name).filter(|value| !value.is_empty());
        let mut time = |name| {
            let text = given(name)?;
            match log_query::time(text) {
                Ok(Some(time)) => Some((time, text.to_owned())),
                Ok(None) | Err(_) => {
                    errors.push(invalid(name, &quoted(text), "invalid time format"));
                    None
                }
            }
        };
        parsed.options.since = time("sinceTime").map(|(time, _)| time);
        parsed.options.until = time("untilTime");
        let mut integer = |name| {
            let text = given(name)?;
            integer(text).map_err(|why| errors.push(invalid(name, &quoted(text), &why))).ok()
        };
        parsed.options.boot = integer("boot");
        parsed.options.tail_lines = integer("tailLines");
        parsed.options.pattern = given("pattern").unwrap_or_default().to_owned();
        match aggregate(errors) {
            Some(text) => Err(text),
            None => Ok((parsed != Self::default()).then_some(parsed)),
        }
    }

    /// Judges it; looks whether a file that is asked for is there. Blocks on the disk.
    ///
    /// # Errors
    /// Upstream's text for a 406.
    pub(crate) fn validate(&self, directory: &LogDirectory) -> Result<(), String> {
        let mut errors = Vec::new();
        for service in &self.services {
            if service.len() > MAX_SERVICE_LENGTH {
                let why = format!("length must be less than {MAX_SERVICE_LENGTH}");
                errors.push(invalid("query", &quoted(service), &why));
            } else if !service.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte)) {
                errors.push(invalid("query", &quoted(service), "input contains unsupported characters"));
            }
        }
        if self.services.len() > MAX_SERVICES {
            let count = self.services.len();
            errors.push(format!("query: Too many: {count}: must have at most {MAX_SERVICES} items"));
        }
        let mut refuse_files = |why: &str| errors.push(invalid("query", &json(&self.files), why));
        match (self.files.as_slice(), self.services.is_empty()) {
            ([], true) => errors.push("query: Required value: cannot be empty with options".into()),
            ([], false) => {}
            ([_, ..], false) => {
                let both = format!("[{}], [{}]", self.files.join(" "), self.services.join(" "));
                errors.push(invalid("query", &quoted(&both), "cannot specify a file and service"));
            }
            ([_, _, ..], true) => refuse_files("cannot specify more than one file"),
            ([_], true) if self.has_options() => refuse_files("cannot specify file with options"),
            ([file], true) => {
                if let Err(error) = directory.check_beneath(file) {
                    refuse_files(&error.as_go_says("statat"));
                }
            }
        }
        let options = &self.options;
        if let (Some(since), Some((until, text))) = (options.since, &options.until)
            && since > *until
        {
            errors.push(invalid("untilTime", &quoted(text), "must be after `sinceTime`"));
        }
        if let Some(boot) = options.boot.filter(|boot| *boot > 0) {
            errors.push(invalid("boot", &boot.to_string(), "must be less than 1"));
        }
        if let Some(lines) = options.tail_lines.filter(|lines| !(0..=MAX_TAIL_LINES).contains(lines)) {
            let why = format!("must be between 0 and {MAX_TAIL_LINES}, inclusive");
            errors.push(invalid("tailLines", &lines.to_string(), &why));
        }
        if let Err(why) = pattern::check(&options.pattern) {
            errors.push(invalid("pattern", &quoted(&options.pattern), &why));
        }
        aggregate(errors).map_or(Ok(()), Err)
    }

    /// Whether anything but names was given.
    pub(crate) fn has_options(&self) -> bool {
        self.options != Options::default()
    }

    /// What the journal is asked about these services. Times are given in UTC and say so; upstream hands them over in
    /// whatever zone they came in, to be read in the machine's.
    pub(crate) fn for_journal(&self, services: Vec<String>) -> JournalQuery {
        let time =
            |time: Timestamp| time.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
        JournalQuery {
            since: self.options.since.map(time),
            until: self.options.until.as_ref().map(|(until, _)| time(*until)),
            lines: self.options.tail_lines,
            units: services,
            pattern: self.options.pattern.clone(),
            boot: self.options.boot,
        }
    }
}

fn invalid(field: &str, value: &str, why: &str) -> String {
    format!("{field}: Invalid value: {value}: {why}")
}

/// A list of texts as Go's JSON writes it.
fn json<T: AsRef<str>>(texts: &[T]) -> String {
    let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
    String::from_utf8_lossy(&mainstay_snapshot::go_json(&texts)).into_owned()
}

/// As `strconv.Atoi` reads a number and words its failure.
fn integer(text: &str) -> Result<i64, String> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let why = if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        "invalid syntax"
    } else {
        match text.parse() {
            Ok(number) => return Ok(number),
            Err(_) => "value out of range",
        }
    };
    Err(format!("strconv.Atoi: parsing {}: {why}", quoted(text)))
}

/// Several errors as one text, each once.
fn aggregate(errors: Vec<String>) -> Option<String> {
    let mut once: Vec<String> = Vec::new();
    for error in errors {
        if !once.contains(&error) {
            once.push(error);
        }
    }
    match once.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        several => Some(format!("[{}]", several.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use mainstay_nodelogs::Links;

    use super::*;

    fn parse(query: &str) -> Result<Option<NodeLogQuery>, String> {
        NodeLogQuery::parse(&Query::parse(Some(query)))
    }

    #[test]
    fn what_cannot_be_read() {
        for (query, expected) in [
            ("query=+%20", r#"query: Invalid value: ["  "]: may not be empty"#),
            ("query=&query=", r#"query: Invalid value: ["",""]: may not be empty"#),
            ("query=a&sinceTime=x", r#"sinceTime: Invalid value: "x": invalid time format"#),
            ("query=a&untilTime=null", r#"untilTime: Invalid value: "null": invalid time format"#),
            ("boot=x", r#"boot: Invalid value: "x": strconv.Atoi: parsing "x": invalid syntax"#),
            (
                "tailLines=99999999999999999999",
                r#"tailLines: Invalid value: "99999999999999999999": strconv.Atoi: parsing "99999999999999999999": value out of range"#,
            ),
            (
                "query=&boot=1.5",
                r#"[query: Invalid value: [""]: may not be empty, boot: Invalid value: "1.5": strconv.Atoi: parsing "1.5": invalid syntax]"#,
            ),
        ] {
            assert_eq!(parse(query), Err(expected.to_owned()), "{query}");
        }
    }

    #[test]
    fn when_it_is_a_query() {
        for query in ["", "x=1", "sinceTime=", "tailLines=&boot=&pattern="] {
            assert_eq!(parse(query), Ok(None), "{query}");
        }
        for query in ["query=a", "boot=0", "pattern=x", "tailLines=0"] {
            assert!(matches!(parse(query), Ok(Some(_))), "{query}");
        }
        let query = parse("query=a&query=b/c&query=d%5Ce&query=+").unwrap().unwrap();
        assert_eq!((query.services.join(" "), query.files.join(" ")), ("a".into(), "b/c d\\e".into()));
    }

    #[test]
    fn what_is_refused() {
        let log = tempfile::tempdir().unwrap();
        std::fs::write(log.path().join("foo.log"), "x").unwrap();
        let directory = LogDirectory::new(log.path().to_owned(), Links::Inside(Vec::new()));
        let validate = |query: &str| parse(query).unwrap().unwrap().validate(&directory);
        let long = "a".repeat(257);
        let too_long = format!(r#"query: Invalid value: "{long}": length must be less than 256"#);
        for (query, expected) in [
            ("boot=0", "query: Required value: cannot be empty with options"),
            ("query=a/b&query=c", r#"query: Invalid value: "[a/b], [c]": cannot specify a file and service"#),
            (
                "query=a/b&query=c/d",
                r#"query: Invalid value: ["a/b","c/d"]: cannot specify more than one file"#,
            ),
            (
                "query=./foo.log&tailLines=1",
                r#"query: Invalid value: ["./foo.log"]: cannot specify file with options"#,
            ),
            (
                "query=/foo.log",
                r#"query: Invalid value: ["/foo.log"]: statat /foo.log: path escapes from parent"#,
            ),
            (
                "query=x/foo.log",
                r#"query: Invalid value: ["x/foo.log"]: statat x/foo.log: no such file or directory"#,
            ),
            ("query=a%20b", r#"query: Invalid value: "a b": input contains unsupported characters"#),
            (format!("query={long}").as_str(), &too_long),
            ("query=a&query=b&query=c&query=d&query=e", "query: Too many: 5: must have at most 4 items"),
            (
                "query=a&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z",
                "untilTime: Invalid value: \"2026-01-01T00:00:00Z\": must be after `sinceTime`",
            ),
            ("query=a&boot=1", "boot: Invalid value: 1: must be less than 1"),
            ("query=a&tailLines=-1", "tailLines: Invalid value: -1: must be between 0 and 100000, inclusive"),
            (
                "query=a&pattern=(",
                "pattern: Invalid value: \"(\": error parsing regexp: missing closing ): `(`",
            ),
            (
                "query=a&boot=2&tailLines=100001",
                "[boot: Invalid value: 2: must be less than 1, tailLines: Invalid value: 100001: must be between 0 and 100000, inclusive]",
            ),
        ] {
            assert_eq!(validate(query), Err(expected.to_owned()), "{query}");
        }
        for query in
            ["query=./foo.log", "query=kubelet", "query=a@b.c:d-e_f&boot=-3&tailLines=100000&pattern=x"]
        {
            assert_eq!(validate(query), Ok(()), "{query}");
        }
    }

    #[test]
    fn what_the_journal_is_asked() {
        let query = "query=a&sinceTime=2026-01-02T03:04:05%2B02:00&untilTime=2026-01-02T03:04:05.5Z&boot=-1&tailLines=7&pattern=x";
        let query = parse(query).unwrap().unwrap();
        assert!(query.has_options());
        let expected = JournalQuery {
            since: Some("2026-01-02 01:04:05 UTC".into()),
            until: Some("2026-01-02 03:04:05 UTC".into()),
            lines: Some(7),
            units: vec!["a".into()],
            pattern: "x".into(),
            boot: Some(-1),
        };
        assert_eq!(query.for_journal(vec!["a".into()]), expected);
    }
}
