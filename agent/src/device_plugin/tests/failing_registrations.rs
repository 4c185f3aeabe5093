//! Tests with registrations that the kubelet refuses, or whose response is lost.

use super::*;

#[tokio::test(start_paused = true)]
async fn failed_registration_is_repeated_after_a_pause() {
    for (fault, pause) in [
        (RegistrationFault::Refused, RETRY.0 / 2),
        (RegistrationFault::Hung, REGISTRATION_TIMEOUT),
        (RegistrationFault::LostResponse, RETRY.0 / 2),
    ] {
        let (folder, allocatable) = scene(&format!("{fault:?}"));
        let mut kubelet = Kubelet::start(&folder, &allocatable);
        kubelet.state.faults.lock().extend([fault; 3]);
        let (process, start) = (Process::new(), Instant::now());
        let plugin = plugin(&process, &folder, DeviceOffer::Emulation);
        if fault == RegistrationFault::LostResponse {
            for _ in 0..3 {
                kubelet.registered().await;
            }
        }
        kubelet.registered().await;
        assert!(start.elapsed() >= 3 * pause, "{fault:?}: {:?}", start.elapsed());
        assert!(kubelet.state.faults.lock().is_empty(), "{fault:?}");
        kubelet.until(1000).await;
        plugin.close().await;
        kubelet.until(0).await;
        fs::remove_dir_all(folder).unwrap();
    }
}
