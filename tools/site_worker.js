// The search of a site that lies in a folder: browsers start no worker from `file:`.
//
// Material for MkDocs would load such a script from another machine. This one runs the worker's
// script in a hidden frame; the theme looks for the name `IFrameWorker` there.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(place) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.document.open();
      this.inner.document.write("<!doctype html><body></body>");
      this.inner.document.close();
      this.inner.postMessage = (data) => setTimeout(() => this.say(this, data));
      this.begun = new Promise((begin) => {
        const script = this.inner.document.createElement("script");
        script.addEventListener("load", begin);
        script.src = place;
        this.inner.document.body.append(script);
      });
    }

    postMessage(data) {
      this.begun.then(() => this.say(this.inner, data));
    }

    say(target, data) {
      target.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }));
    }
  };
}
