// Asks the server something that is not polled.

// Returns {answer}, or {why}, a sentence.
export async function ask(path) {
  try {
    const response = await fetch(path);
    if (response.ok) return { answer: await response.json() };
    // Servers before the verb existed list all verbs in their refusal.
    return { why: response.status === 501 ? "This server does not offer it." : await response.text() };
  } catch {
    return { why: "octavo web does not answer." };
  }
}
