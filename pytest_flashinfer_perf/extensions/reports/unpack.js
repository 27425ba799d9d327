"use strict";
(async () => {
  const packed = atob(document.getElementById("packed").textContent);
  const bytes = Uint8Array.from(packed, (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const page = await new Response(stream).text();
  document.open();
  document.write(page);
  document.close();
})();
