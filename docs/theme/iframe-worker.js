// The site's search runs in a worker, which browsers refuse to start for a page that is a file. There, this runs the
// worker's script in a hidden frame of the page instead.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.scope = frame.contentWindow;
      this.scope.postMessage = (data) =>
        queueMicrotask(() => this.dispatchEvent(new MessageEvent("message", { data })));
      this.loaded = new Promise((resolve, reject) => {
        const script = this.scope.document.createElement("script");
        script.src = url;
        script.onload = resolve;
        script.onerror = reject;
        this.scope.document.body.append(script);
      });
    }
    async postMessage(data) {
      await this.loaded;
      this.scope.dispatchEvent(new MessageEvent("message", { data }));
    }
    terminate() {
      this.scope.frameElement.remove();
    }
  };
}
