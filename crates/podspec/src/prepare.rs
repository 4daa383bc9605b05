//! From a document as written to an object that can be used.

use crate::{
    Content, Problem, StaticPodPlace, default_config_map, default_secret, prepare_static_pod,
    validate::{runtime_class_warnings, validate_runtime_class},
    validate_config_map, validate_secret,
};

impl Content {
    /// Defaults and validates the object; a pod becomes a static one (see [`prepare_static_pod`]). Also returns what will not
    /// work as it looks.
    ///
    /// # Errors
    /// Every problem, when there is one.
    pub fn prepare(self, place: &StaticPodPlace<'_>) -> Result<(Self, Vec<String>), Vec<Problem>> {
        let (object, problems) = match self {
            Self::Pod(pod) => {
                let (pod, warnings) = prepare_static_pod(pod, place)?;
                return Ok((Self::Pod(pod), warnings));
            }
            Self::ConfigMap(mut object) => {
                default_config_map(&mut object);
                let problems = validate_config_map(&object);
                (Self::ConfigMap(object), problems)
            }
            Self::Secret(mut object) => {
                default_secret(&mut object);
                let problems = validate_secret(&object);
                (Self::Secret(object), problems)
            }
            Self::RuntimeClass(object) => {
                let problems = validate_runtime_class(&object);
                let warnings = runtime_class_warnings(&object);
                return if problems.is_empty() {
                    Ok((Self::RuntimeClass(object), warnings))
                } else {
                    Err(problems)
                };
            }
        };
        if problems.is_empty() { Ok((object, Vec::new())) } else { Err(problems) }
    }
}
