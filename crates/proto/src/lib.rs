//! The node's gRPC interfaces as Rust: what stands in `proto/`, generated, and pods in protobuf.
//!
//! Messages and clients are made from `proto/*.proto` by the build, and servers of what device plugins and the agent call one another by;
//! the others are written by hand in the grpc crate, because they send bytes that many clients share. [`core`] encodes a pod as the Kubernetes API does, by a table that comes
//! from `proto/core/v1/pod.proto`.
//!
//! What it does not do: no I/O, no tasks; it knows nothing of sockets.

#![forbid(unsafe_code)]

pub mod core;

/// Generated modules share their exceptions.
macro_rules! generated {
    ($(#[$doc:meta])* $name:ident, $file:literal) => {
        $(#[$doc])*
        #[allow(
            missing_docs, unreachable_pub, clippy::all, clippy::allow_attributes_without_reason, clippy::large_futures,
            reason = "generated; the comments of the .proto files are its documentation"
        )]
        pub mod $name {
            include!(concat!(env!("OUT_DIR"), $file));
        }
    };
}

generated!(
    /// Conditions of this node's pods.
    podinfo, "/podinfo/podinfo.v1alpha1.rs"
);
generated!(
    /// This node's pods, whole.
    pods, "/pods/v1alpha1.rs"
);
generated!(
    /// The first version of [`podresources::v1`].
    podresources_v1alpha1, "/podresources_v1alpha1/v1alpha1.rs"
);
generated!(
    /// Programs that offer devices.
    deviceplugin, "/plugins/v1beta1.rs"
);
generated!(
    /// Collectors of traces.
    otlp, "/otlp/opentelemetry.proto.collector.trace.v1.rs"
);
generated!(
    /// Programs that make themselves known by a socket.
    pluginregistration, "/plugins/pluginregistration.rs"
);

/// Who holds what. The modules stand as the packages do, because one refers to the other by path.
pub mod podresources {
    generated!(
        /// Upstream's.
        v1, "/podresources/v1.rs"
    );

    /// mainstay's own.
    pub mod mainstay {
        /// Beside upstream's.
        pub mod podresources {
            generated!(
                /// The same, told again when it changes.
                v1alpha1, "/podresources/mainstay.podresources.v1alpha1.rs"
            );
        }
    }
}
