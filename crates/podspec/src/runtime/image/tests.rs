use super::*;

#[test]
fn names() {
    let digest = format!("sha256:{}", "0a".repeat(32));
    // Each row: written, registry, path, tag or digest shown by Display.
    for (image, full, to_pull) in [
        ("busybox", "docker.io/library/busybox:latest", "busybox:latest"),
        ("busybox:1", "docker.io/library/busybox:1", "busybox:1"),
        ("local/busybox", "docker.io/local/busybox:latest", "local/busybox:latest"),
        ("docker.io/busybox", "docker.io/library/busybox:latest", "docker.io/busybox:latest"),
        ("index.docker.io/busybox", "docker.io/library/busybox:latest", "index.docker.io/busybox:latest"),
        ("index.docker.io/a/b", "docker.io/a/b:latest", "index.docker.io/a/b:latest"),
        ("gcr.io/p/x:v1.2", "gcr.io/p/x:v1.2", "gcr.io/p/x:v1.2"),
        ("localhost/x", "localhost/x:latest", "localhost/x:latest"),
        ("localhost:5000/x", "localhost:5000/x:latest", "localhost:5000/x:latest"),
        ("localhost:5000", "docker.io/library/localhost:5000", "localhost:5000"),
        ("[::1]:5000/x", "[::1]:5000/x:latest", "[::1]:5000/x:latest"),
        ("Foo/bar", "Foo/bar:latest", "Foo/bar:latest"),
        ("foo_bar.com/x", "foo_bar.com/x:latest", "foo_bar.com/x:latest"),
        ("a.b/c-d--e/f_g__h:TAG", "a.b/c-d--e/f_g__h:TAG", "a.b/c-d--e/f_g__h:TAG"),
        (&format!("x@{digest}"), &format!("docker.io/library/x@{digest}"), &format!("x@{digest}")),
        (&format!("q.io/x:t@{digest}"), &format!("q.io/x:t@{digest}"), &format!("q.io/x:t@{digest}")),
    ] {
        let name = ImageName::parse(image).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(name.to_string(), full, "{image}");
        assert_eq!(ImageName::with_default_tag(image).unwrap(), to_pull, "{image}");
    }
    let name = ImageName::parse("q.io:80/a/x:t").unwrap();
    assert_eq!(
        (name.registry(), name.path(), name.repository().as_str(), name.tag(), name.digest()),
        ("q.io:80", "a/x", "q.io:80/a/x", Some("t"), None)
    );
    assert_eq!(ImageName::parse(&format!("x@{digest}")).unwrap().tag(), None);
    assert_eq!(
        ImageName::parse("foo_bar.com/x").unwrap().registry(),
        "",
        "an underscore cannot be in a host"
    );
}

#[test]
fn bad_names() {
    let (hex, long) = ("a".repeat(64), "x".repeat(256));
    let short = format!("x@sha256:{}", "a".repeat(40));
    let upper = format!("x@sha256:{}", "A".repeat(64));
    let md5 = format!("x@md5:{}", "a".repeat(32));
    for (image, why) in [
        ("", "invalid reference format"),
        (" ", "invalid reference format"),
        ("a b", "invalid reference format"),
        ("x:", "invalid reference format"),
        ("x:tag:tag", "invalid reference format"),
        (":tag", "invalid reference format"),
        ("/x", "invalid reference format"),
        ("x/", "invalid reference format"),
        ("x//y", "invalid reference format"),
        ("-x", "invalid reference format"),
        ("x..y", "invalid reference format"),
        ("x___y", "invalid reference format"),
        ("x@", "invalid reference format"),
        ("x@sha256:abc", "invalid reference format"),
        ("http://x/y", "invalid reference format"),
        ("q.io:port/x", "invalid reference format"),
        ("ümlaut", "invalid reference format"),
        (&format!("x:{}", "t".repeat(129)), "invalid reference format"),
        ("X", "invalid reference format: repository name (library/X) must be lowercase"),
        ("foo/Bar:1", "invalid reference format: repository name (foo/Bar) must be lowercase"),
        (&hex, &format!("invalid repository name ({hex}), cannot specify 64-byte hexadecimal strings")),
        (&format!("q.io/{long}"), "repository name must not be more than 255 characters"),
        (&short, "invalid checksum digest length"),
        (&upper, "invalid checksum digest format"),
        (&md5, "unsupported digest algorithm"),
        ("FOO_bar.com/x", "repository name must be lowercase"),
    ] {
        let error = ImageName::parse(image).expect_err(image);
        assert_eq!(error.to_string(), format!("couldn't parse image name {image:?}: {why}"));
        assert_eq!(ImageName::with_default_tag(image), Err(error));
    }
    assert_eq!(
        ImageName::with_default_tag("my image").unwrap_err().waiting_message(),
        "Failed to apply default image tag \"my image\": couldn't parse image name \"my image\": invalid reference format"
    );
    assert_eq!(ImageNameError::REASON, "InvalidImageName");
}
