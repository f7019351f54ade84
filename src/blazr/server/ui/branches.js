// Versions of a chat: what was asked or answered before an edit or a retry is kept beside it.
//
// `chat.messages` is the version that is shown. The message where versions part has a `fork`: the
// messages of the `others` from there on, a list for each, and the place `at` of the one shown
// among them. Others hold forks of their own.

/** Put another version beside the messages from a place on; its first message gets the fork. */
export function addVersion(chat, place, message) {
  const tail = chat.messages.splice(place);
  const isEmpty = tail[0]?.role === "assistant" && !isSaid(tail[0]);
  // what failed before it began is not worth keeping
  const versions = tail.length && !isEmpty ? versionsOf(tail) : (tail[0]?.fork?.others ?? []);
  delete tail[0]?.fork;
  if (versions.length) message.fork = { others: versions, at: versions.length };
  chat.messages.push(message);
}

/** Show another version, by its number from 0. */
export function showVersion(chat, place, number) {
  const tail = chat.messages.splice(place);
  const versions = versionsOf(tail);
  delete tail[0].fork;
  const [shown] = versions.splice(number, 1);
  shown[0].fork = { others: versions, at: number };
  chat.messages.push(...shown);
}

/** Whether an assistant's message says something: one that failed before it began does not. */
export function isSaid({ role, content, thought, calls = [], steps = [], media = [] }) {
  return role !== "assistant" || Boolean(content || thought || calls.length + steps.length + media.length);
}

function versionsOf(tail) {
  const { others = [], at = 0 } = tail[0].fork ?? {};
  return others.toSpliced(at, 0, tail);
}
