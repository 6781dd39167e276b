use std::time::Duration;

/// Waits before a condition is looked at again.
pub async fn pause(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}
