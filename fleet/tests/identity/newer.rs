//! Content of a later version: refused, with its version number.

use std::time::SystemTime;

use again_fleet::identity::Untrusted;
use again_fleet::identity::authority::Revocation;
use again_fleet::wire::Malformed;
use again_fleet::wire::body::Content;
use again_fleet::wire::envelope::{Draft, Envelope, seal};
use again_fleet::wire::name::Namespace;
use again_fleet::wire::trigger::Trigger;
use serde::{Deserialize, Serialize};

fn namespace() -> Namespace {
    "test".parse().expect("a namespace")
}

/// Content of a later version under the same key.
#[derive(Debug, Serialize, Deserialize)]
struct Later {
    colour: String,
}

impl Content for Later {
    const KIND: &'static str = "trigger.2";

    fn check(&self) -> Result<(), Malformed> {
        Ok(())
    }
}

#[test]
fn what_a_later_version_wrote_is_refused_with_its_version() {
    let own = super::own("web1.test").expect("this node");
    let authority = super::authority("crl.pem", Revocation::Chain);
    let open = |bytes: &[u8]| {
        let envelope = Envelope::parse(bytes).map_err(Untrusted::Malformed)?;
        envelope.open::<Trigger, _, Untrusted>(&namespace(), |seal| {
            authority.verify(seal, SystemTime::now())
        })
    };
    let why = |bytes: &[u8]| open(bytes).expect_err("refused").to_string();
    let colour = "red".to_owned();
    let draft = Draft::new(&namespace(), &Later { colour }).expect("a draft");
    let mut bytes = seal(&[draft], |message| own.sign(message)).expect("sealed");
    let mut bytes = bytes.remove(0);
    let said = why(&bytes);
    assert!(
        said.contains("the value is a 'trigger.2', not a 'trigger.1'"),
        "{said}"
    );
    bytes[..4].copy_from_slice(b"AGF2");
    let said = why(&bytes);
    assert!(
        said.contains("an envelope of again-fleet's version 2, and this program knows version 1"),
        "{said}"
    );
    let strange = why(b"AGF\0");
    assert!(
        strange.contains("no envelope of again-fleet's version 1"),
        "{strange}"
    );
}
