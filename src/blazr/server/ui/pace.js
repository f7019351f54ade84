// When to draw what takes longer the more of it there is, such as a reply that grows.

const REST = 4;

/**
 * Draw with the next frame, but rest four times as long as the last drawing took. Otherwise a
 * paragraph that only grows takes time by the square of its length, and the page answers to nothing.
 *
 * Returns `ask`, to be called after each change, and `stop`, after which nothing is drawn.
 */
export function paced(draw, {
  now = () => performance.now(),
  after = (wait, then) => (wait > 0 ? setTimeout(() => requestAnimationFrame(then), wait) : requestAnimationFrame(then)),
} = {}) {
  let [isAsked, hasStopped, restsUntil] = [false, false, 0];
  const drawNow = () => {
    if (hasStopped) return;
    isAsked = false;
    const began = now();
    draw();
    const ended = now();
    restsUntil = ended + REST * (ended - began);
  };
  return {
    ask() {
      if (!isAsked) after(restsUntil - now(), drawNow);
      isAsked = true;
    },
    stop() {
      hasStopped = true;
    },
  };
}
