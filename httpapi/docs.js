// Adds a button to each command that copies it. Browsers let only pages by https, or of this machine, copy.
for (const place of navigator.clipboard ? document.querySelectorAll(".copy") : []) {
  const button = document.createElement("button")
  button.textContent = "Copy"
  button.onclick = async () => {
    await navigator.clipboard.writeText(place.querySelector("pre").textContent)
    button.textContent = "Copied"
  }
  place.append(button)
}
