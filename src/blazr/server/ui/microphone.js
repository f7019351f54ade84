// The microphone.

/** Whether this browser lets the page record: it does from this machine, or over HTTPS. */
export const canRecord = Boolean(navigator.mediaDevices?.getUserMedia && window.MediaRecorder);

/**
 * Record until `stop` is called, or so many seconds.
 *
 * @returns {{stop: function, file: Promise<File>}} the file is there once it has stopped
 */
export async function record(seconds) {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream);
  const parts = [];
  recorder.addEventListener("dataavailable", ({ data }) => parts.push(data));
  const file = new Promise((resolve) => {
    recorder.addEventListener("stop", () => {
      stream.getTracks().forEach((track) => track.stop());
      resolve(new File(parts, "recording", { type: recorder.mimeType }));
    });
  });
  recorder.start();
  const stop = () => recorder.state !== "inactive" && recorder.stop();
  setTimeout(stop, 1000 * seconds);
  return { stop, file };
}
