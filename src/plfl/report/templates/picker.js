const picker = document.getElementById("picker");
const show = () => document.querySelectorAll(".client").forEach((part, i) => { part.hidden = i !== picker.selectedIndex; });
if (picker) { picker.addEventListener("change", show); show(); }
