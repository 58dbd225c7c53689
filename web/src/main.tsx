import { render } from "preact";
import { Model } from "./model";
import "./style.css";
import { App } from "./views/app";
import { ModelContext } from "./views/hooks";

const root = document.getElementById("app");
if (root) render(<ModelContext.Provider value={new Model()}><App /></ModelContext.Provider>, root);
