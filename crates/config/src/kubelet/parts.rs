//! The objects inside `KubeletConfiguration`.

use std::collections::BTreeMap;

use crate::definition::{Check, FlagStyle, Kind, definitions};
use crate::duration::GoDuration;
use crate::quantity::Quantity;

definitions! {
    /// Who may call the HTTPS API.
    pub struct Authentication {
        section "" {
            /// Callers with a client certificate.
            "x509" x509: X509Authentication;
            /// Callers with a bearer token.
            "webhook" webhook: WebhookAuthentication;
            /// Callers with neither.
            "anonymous" anonymous: AnonymousAuthentication;
        }
    }
}

definitions! {
    /// Callers with a client certificate.
    pub struct X509Authentication {
        section "" {
            /// File of the authorities whose client certificates are accepted, in PEM; none if empty.
            "clientCAFile" client_ca_file: String, flag("client-ca-file").path().acted();
        }
    }
}

definitions! {
    /// Callers with a bearer token.
    pub struct WebhookAuthentication {
        section "" {
            /// Ask the API server's TokenReview about bearer tokens.
            "enabled" enabled: bool = "true", flag("authentication-token-webhook").zero_counts().acted()
                .note("on in every mode; upstream turns it off when it is started without --config");
            /// How long an answer about a token is kept.
            "cacheTTL" cache_ttl: GoDuration = "2m0s", flag("authentication-token-webhook-cache-ttl").acted()
                .check(Check::NotNegative);
        }
    }
}

definitions! {
    /// Callers who show nothing.
    pub struct AnonymousAuthentication {
        section "" {
            /// Accept them as `system:anonymous`.
            "enabled" enabled: bool, flag("anonymous-auth").zero_counts().acted()
                .note("off in every mode; upstream turns it on when it is started without --config");
        }
    }
}

definitions! {
    /// What callers of the HTTPS API may do.
    pub struct Authorization {
        section "" {
            /// Ask the API server's SubjectAccessReview (`Webhook`), or allow everything (`AlwaysAllow`).
            "mode" mode: String = "Webhook", flag("authorization-mode").acted()
                .check(Check::OneOf(&["AlwaysAllow", "Webhook"]))
                .note("Webhook in every mode; upstream uses AlwaysAllow when it is started without --config. Without an API server, Webhook asks the rules in access.yaml below --root-dir");
            /// How long the API server's answers are kept.
            "webhook" webhook: WebhookAuthorization;
        }
    }
}

definitions! {
    /// How long answers of SubjectAccessReview are kept.
    pub struct WebhookAuthorization {
        section "" {
            /// How long a yes is kept.
            "cacheAuthorizedTTL" cache_authorized_ttl: GoDuration = "5m0s",
                flag("authorization-webhook-cache-authorized-ttl").acted().check(Check::NotNegative);
            /// How long a no is kept.
            "cacheUnauthorizedTTL" cache_unauthorized_ttl: GoDuration = "30s",
                flag("authorization-webhook-cache-unauthorized-ttl").acted().check(Check::NotNegative);
        }
    }
}

definitions! {
    /// Where traces go.
    pub struct Tracing {
        section "" {
            /// Address of the OTLP gRPC collector; `localhost:4317` if absent.
            "endpoint" endpoint: Option<String>,
                acted().check(Check::Rule("host:port, or a dns, unix or unix-abstract URL"));
            /// Spans sampled out of a million; if absent, the caller's decision counts.
            "samplingRatePerMillion" sampling_rate_per_million: Option<i32>,
                acted().check(Check::Between(0, 1_000_000));
        }
    }
}

definitions! {
    /// A taint of the Node object.
    pub struct Taint {
        section "" {
            /// Its key.
            "key" key: String;
            /// Its value.
            "value" value: String;
            /// NoSchedule, PreferNoSchedule or NoExecute.
            "effect" effect: String;
            /// When it was added; not to be set here.
            "timeAdded" time_added: Option<String>;
        }
    }
}

definitions! {
    /// Memory of one NUMA node that is kept from pods.
    pub struct MemoryReservation {
        section "" {
            /// The NUMA node's number.
            "numaNode" numa_node: i32, zero_counts();
            /// Amounts of `memory` and `hugepages-SIZE`.
            "limits" limits: BTreeMap<String, Quantity>;
        }
    }
}

definitions! {
    /// The grace period of pods from a priority on.
    pub struct PriorityGracePeriod {
        section "" {
            /// The lowest priority it applies to.
            "priority" priority: i32, zero_counts();
            /// How many seconds such pods get.
            "shutdownGracePeriodSeconds" shutdown_grace_period_seconds: i64, zero_counts();
        }
    }
}

definitions! {
    /// Whether pods may swap.
    pub struct MemorySwap {
        section "" {
            /// `NoSwap` (also if empty), or `LimitedSwap` in proportion to memory requests; not for critical pods, which those from files are.
            "swapBehavior" swap_behavior: String, acted().gate("NodeSwap")
                .check(Check::OneOf(&["", "NoSwap", "LimitedSwap"]));
        }
    }
}

definitions! {
    /// Back-off of containers that keep failing.
    pub struct CrashLoopBackOff {
        section "" {
            /// The longest wait before a failing container is started again.
            "maxContainerRestartPeriod" max_container_restart_period: Option<GoDuration> = "5m0s",
                acted().gate("KubeletCrashLoopBackOffMax").check(Check::Rule("must be between 1s and 300s"));
        }
    }
}

definitions! {
    /// Sizes of the ID ranges of pods with user namespaces.
    pub struct UserNamespaces {
        section "" {
            /// User and group IDs of each pod; 65536 if absent.
            "idsPerPod" ids_per_pod: Option<i64>,
                acted().check(Check::Rule("a multiple of 65536, below 4294967296"));
        }
    }
}

definitions! {
    /// How the agent itself logs.
    pub struct Logging {
        section "" {
            /// Lines of text, or of JSON.
            "format" format: String = "text", flag("logging-format").acted()
                .check(Check::OneOf(&["text", "json"]));
            /// The longest time that buffered lines wait.
            "flushFrequency" flush_frequency: GoDuration = "5s",
                kind(Kind::DurationOrNanoseconds).flag("log-flush-frequency").kept()
                .check(Check::Rule("must be greater than zero"));
            /// How much is logged; 0 is the least, 10 shows every call.
            "verbosity" verbosity: u32, flag("v").short('v').kept().zero_counts().acted()
                .check(Check::Between(0, 2_147_483_647));
            /// Other levels for single source files; only for the text format.
            "vmodule" vmodule: Vec<VModuleItem>, flag_as("vmodule", FlagStyle::VModule).kept()
                .check(Check::Rule("file patterns without '=' or ','; only for the text format"));
            /// Where lines of each format go.
            "options" options: LoggingOptions;
        }
    }
}

definitions! {
    /// The log level of some source files.
    pub struct VModuleItem {
        section "" {
            /// Base name of the files, without suffix; may contain `*`.
            "filePattern" file_pattern: String;
            /// Their level.
            "verbosity" verbosity: u32, zero_counts();
        }
    }
}

definitions! {
    /// Where lines of each format go.
    pub struct LoggingOptions {
        section "" {
            /// Lines of text.
            "text" text: OutputRouting;
            /// Lines of JSON.
            "json" json: JsonOutputRouting;
        }
    }
}

definitions! {
    /// Where lines of the text format go.
    pub struct OutputRouting {
        section "" {
            /// Errors to standard error and the rest to standard output.
            "splitStream" split_stream: bool, flag("log-text-split-stream").gate("LoggingAlphaOptions");
            /// How much of standard output is buffered when it is split; 0 for nothing.
            "infoBufferSize" info_buffer_size: Quantity = "0", flag("log-text-info-buffer-size")
                .gate("LoggingAlphaOptions");
        }
    }
}

definitions! {
    /// Where lines of the JSON format go.
    pub struct JsonOutputRouting {
        section "" {
            /// Errors to standard error and the rest to standard output.
            "splitStream" split_stream: bool, flag("log-json-split-stream").gate("LoggingAlphaOptions");
            /// How much of standard output is buffered when it is split; 0 for nothing.
            "infoBufferSize" info_buffer_size: Quantity = "0", flag("log-json-info-buffer-size")
                .gate("LoggingAlphaOptions");
        }
    }
}
