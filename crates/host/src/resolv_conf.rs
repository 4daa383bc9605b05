//! The resolver configuration of the node, which pods inherit.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// No resolver configuration is this long; upstream stops there too.
const MAX_BYTES: u64 = 10 << 20;

/// What a `resolv.conf` says, by upstream's rules (`pkg/kubelet/network/dns`): the last `search` line wins, a domain loses
/// its trailing dot, `.` alone is left out, and of options with one name the last counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvConf {
    /// Addresses of name servers, in order.
    pub nameservers: Vec<String>,
    /// Search domains, in order.
    pub searches: Vec<String>,
    /// Options such as `ndots:5`, in order of first mention.
    pub options: Vec<String>,
}

/// Why a `resolv.conf` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ResolvConfError {
    /// It cannot be read.
    #[error("cannot read {path}; does resolvConf name the right file?", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It is far too long.
    #[error("{path} is longer than {MAX_BYTES} bytes; does resolvConf name the right file?", path = path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A `nameserver` line has no address.
    #[error("line {line} of the resolver configuration has a nameserver without an address")]
    NoAddress {
        /// The line's number, from one.
        line: usize,
    },
}

impl ResolvConf {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`ResolvConfError`].
    pub fn read(path: &Path) -> Result<Self, ResolvConfError> {
        let failed = |source| ResolvConfError::Read { path: path.to_owned(), source };
        if fs::metadata(path).map_err(failed)?.len() > MAX_BYTES {
            return Err(ResolvConfError::TooLong { path: path.to_owned() });
        }
        let bytes = fs::read(path).map_err(failed)?;
        Self::parse(&String::from_utf8_lossy(&bytes))
    }

    /// Parses the text of a `resolv.conf`.
    ///
    /// # Errors
    /// [`ResolvConfError::NoAddress`].
    pub fn parse(text: &str) -> Result<Self, ResolvConfError> {
        let mut parsed = Self::default();
        for (index, line) in text.lines().enumerate() {
            let mut fields = line.split_whitespace();
            match fields.next() {
                Some("nameserver") => {
                    let address = fields.next().ok_or(ResolvConfError::NoAddress { line: index + 1 })?;
                    parsed.nameservers.push(address.to_owned());
                }
                Some("search") => {
                    let domains = fields.filter(|domain| *domain != ".");
                    parsed.searches =
                        domains.map(|domain| domain.strip_suffix('.').unwrap_or(domain).to_owned()).collect();
                }
                Some("options") => fields.for_each(|option| parsed.set_option(option)),
                // Comments, and what the resolver of a pod would not be told either (domain, sortlist).
                _ => {}
            }
        }
        Ok(parsed)
    }

    fn set_option(&mut self, option: &str) {
        let name = |option: &str| option.split(':').next().unwrap_or_default().to_owned();
        match self.options.iter_mut().find(|earlier| name(earlier) == name(option)) {
            Some(earlier) => option.clone_into(earlier),
            None => self.options.push(option.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows after upstream's `TestParseResolvConf`.
    #[test]
    fn parses_as_upstream() {
        type Row<'a> = (&'a str, &'a [&'a str], &'a [&'a str], &'a [&'a str]);
        let rows: &[Row<'_>] = &[
            ("", &[], &[], &[]),
            (" ", &[], &[], &[]),
            ("\n\t\n", &[], &[], &[]),
            ("#comment\nnameserver\t1.2.3.4", &["1.2.3.4"], &[], &[]),
            ("nameserver 1.2.3.4 ignored\nnameserver 5.6.7.8", &["1.2.3.4", "5.6.7.8"], &[], &[]),
            (" \tnameserver \t 1.2.3.4 \t", &["1.2.3.4"], &[], &[]),
            ("nameserver 1.2.3.4 #comment", &["1.2.3.4"], &[], &[]),
            ("search ", &[], &[], &[]),
            ("search .", &[], &[], &[]),
            ("search foo", &[], &["foo"], &[]),
            ("search foo bar bat.com\n", &[], &["foo", "bar", "bat.com"], &[]),
            ("search foo.\nsearch bar. .", &[], &["bar"], &[]),
            ("search foo\nsearch", &[], &[], &[]),
            ("nameserver 1.2.3.4\nsearch foo\nnameserver 5.6.7.8", &["1.2.3.4", "5.6.7.8"], &["foo"], &[]),
            ("options ndots:5 attempts:2", &[], &[], &["ndots:5", "attempts:2"]),
            ("options ndots:1\noptions ndots:5 attempts:3", &[], &[], &["ndots:5", "attempts:3"]),
            ("options debug debug\ndomain x\nsortlist 1.2.3.4\n;nameserver 9.9.9.9", &[], &[], &["debug"]),
        ];
        for (text, nameservers, searches, options) in rows {
            let parsed = ResolvConf::parse(text).unwrap();
            assert_eq!(parsed.nameservers, *nameservers, "{text:?}");
            assert_eq!(parsed.searches, *searches, "{text:?}");
            assert_eq!(parsed.options, *options, "{text:?}");
        }
    }

    #[test]
    fn bad_files() {
        let error = ResolvConf::parse("#\nnameserver\n").unwrap_err().to_string();
        assert_eq!(error, "line 2 of the resolver configuration has a nameserver without an address");
        let error = ResolvConf::read(Path::new("/no/such/resolv.conf")).unwrap_err().to_string();
        assert_eq!(error, "cannot read /no/such/resolv.conf; does resolvConf name the right file?");
    }
}
