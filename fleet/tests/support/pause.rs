use std::time::Duration;

/// Waits before the next check of a condition.
pub async fn pause(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}
