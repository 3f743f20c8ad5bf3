// The button of a console block copies what one types: no prompts, and no output.
document$.subscribe(() => {
  for (const code of document.querySelectorAll(".highlight code")) {
    if (code.querySelector(".gp") === null) {
      continue; // no prompt, no console
    }
    const typed = [];
    let continued = false;
    for (const line of code.textContent.split("\n")) {
      const command = line.startsWith("$ ");
      if (command || continued) {
        typed.push(command ? line.slice(2) : line);
        continued = line.endsWith("\\");
      }
    }
    code.setAttribute("data-copy", typed.join("\n"));
  }
});
