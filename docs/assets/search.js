"use strict";
/* What people paste into the search are options and messages: --shm-size, "Watchdog timeout: which rank". The search
   takes these signs for operators, and finds nothing. They are left out of what it is asked. */
(() => {
  const QUERY = 2, send = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...rest) {
    const asked = message && message.type === QUERY && typeof message.data === "string";
    const plain = asked ? message.data.replace(/(^|\s)[-+]+|[:~^*]+/g, "$1") : "";
    return send.call(this, asked ? { ...message, data: plain } : message, ...rest);
  };
})();
